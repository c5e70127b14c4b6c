package plan

import (
	"cmp"
	"slices"
)

// Limit is the maximum number of nodes that one resource allows.
type Limit struct {
	Resource string `json:"resource"`
	// Nodes is the largest number of nodes for which the resource is sufficient.
	Nodes int `json:"nodes"`
	// Used is the usage of the planned cluster as a fraction of the usable resource. Above 1, the
	// resource is not sufficient.
	Used float64 `json:"used"`
}

// resources are the limited resources. used returns the fraction of the resource that a plan uses.
var resources = []struct {
	name string
	used func(*Plan) float64
}{
	{"watch cache of one resource, in each API server", func(p *Plan) float64 {
		return p.Needs.APIServers.BusiestCache / p.Costs.APIServer.CacheEventsMax
	}},
	{"CPU of an API server, for watch events from the store", func(p *Plan) float64 {
		return p.Needs.APIServers.CoresEach / (p.Machines.Busy * p.Machines.APIServerCores)
	}},
	{"memory of an API server, for its caches", func(p *Plan) float64 {
		return p.Needs.APIServers.GiBCaches / (p.Machines.Busy * p.Machines.APIServerGiB)
	}},
	{"number of API servers", func(p *Plan) float64 {
		return float64(p.Needs.APIServers.Count) / float64(p.Machines.APIServers)
	}},
	{"network of an API server", func(p *Plan) float64 {
		return p.Needs.APIServers.OutGbitEach / (p.Machines.Busy * p.Machines.NetworkGbit)
	}},
	{"CPU of the store", func(p *Plan) float64 {
		return p.Needs.Store.Cores / (p.Machines.Busy * p.Machines.StoreCores)
	}},
	{"the store's thread that applies writes", func(p *Plan) float64 {
		return p.Needs.Store.ThreadShare / p.Machines.Busy
	}},
	{"memory of the store", func(p *Plan) float64 {
		return p.Needs.Store.GiB / (p.Machines.Busy * p.Machines.StoreGiB)
	}},
	{"network of the store", func(p *Plan) float64 {
		return p.Needs.Store.OutGbit / (p.Machines.Busy * p.Machines.NetworkGbit)
	}},
	{"disk of the store, for its log", func(p *Plan) float64 {
		return p.Needs.Store.LogMBps / (p.Machines.Busy * p.Machines.DiskMBps)
	}},
	{"the scheduler's thread that schedules pods", func(p *Plan) float64 {
		return p.Needs.Scheduler.ThreadShare / p.Machines.Busy
	}},
}

// limits returns the limits of all resources, the smallest first.
func limits(c Cluster, m Machines, costs Costs) []Limit {
	planFor := func(nodes int) *Plan {
		c.Nodes = nodes
		return assess(c, m, costs)
	}
	planned := assess(c, m, costs)
	found := make([]Limit, 0, len(resources))
	for _, r := range resources {
		found = append(found, Limit{
			Resource: r.name, Used: r.used(planned),
			Nodes: largest(func(nodes int) bool { return r.used(planFor(nodes)) <= 1 }),
		})
	}
	slices.SortStableFunc(found, func(a, b Limit) int { return cmp.Compare(a.Nodes, b.Nodes) })
	return found
}

// unlimitedNodes is the number of nodes of a limit that no planned number of nodes reaches.
const unlimitedNodes = 1_000_000_000

// largest returns the largest number from 0 to unlimitedNodes for which sufficient returns true. If
// sufficient is true for a number, it must be true for all smaller numbers.
func largest(sufficient func(int) bool) int {
	low, high := 0, unlimitedNodes
	for low < high {
		middle := low + (high-low+1)/2
		if sufficient(middle) {
			low = middle
		} else {
			high = middle - 1
		}
	}
	return low
}
