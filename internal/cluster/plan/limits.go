package plan

import (
	"cmp"
	"slices"
)

// Limit is how far one resource goes.
type Limit struct {
	Resource string `json:"resource"`
	// Nodes that it allows, everything else as it is.
	Nodes int `json:"nodes"`
	// Used is what the cluster takes of it, as a share of what may be used.
	Used float64 `json:"used"`
}

// resources are all of which there is only so much, and what is used of each.
var resources = []struct {
	name string
	used func(*Plan) float64
}{
	{"watch cache of one kind, in each API server", func(p *Plan) float64 {
		return p.Needs.APIServers.BusiestCache / p.Costs.APIServer.CacheEventsMax
	}},
	{"CPU of an API server, for what the store tells each", func(p *Plan) float64 {
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
	{"the store's thread that all writes pass", func(p *Plan) float64 {
		return p.Needs.Store.Thread / p.Machines.Busy
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
	{"the scheduler's thread that all pods pass", func(p *Plan) float64 {
		return p.Needs.Scheduler.Thread / p.Machines.Busy
	}},
}

// limits are how many nodes each resource allows, the tightest first.
func limits(c Cluster, m Machines, costs Costs) []Limit {
	at := func(nodes int) *Plan {
		c.Nodes = nodes
		return assess(c, m, costs)
	}
	asked := assess(c, m, costs)
	found := make([]Limit, 0, len(resources))
	for _, r := range resources {
		found = append(found, Limit{
			Resource: r.name, Used: r.used(asked),
			Nodes: largest(func(nodes int) bool { return r.used(at(nodes)) <= 1 }),
		})
	}
	slices.SortStableFunc(found, func(a, b Limit) int { return cmp.Compare(a.Nodes, b.Nodes) })
	return found
}

// Nodes that a limit says are without end.
const endless = 1_000_000_000

// largest is the largest number for which something holds that holds for less if it does
// for more.
func largest(holds func(int) bool) int {
	low, high := 0, endless
	for low < high {
		middle := low + (high-low+1)/2
		if holds(middle) {
			low = middle
		} else {
			high = middle - 1
		}
	}
	return low
}
