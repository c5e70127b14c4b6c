package plan

import (
	"cmp"
	"slices"
)

// Limit is the maximum number of nodes that one resource allows.
type Limit struct {
	Resource string `json:"resource"`
	// Component is the component whose resource it is, such as [Store].
	Component string `json:"component"`
	// Machines reports whether machines with more cores or memory, or more machines, raise the limit.
	// Others are limits of the software, of the network and of the disk.
	Machines bool `json:"machines"`
	// Nodes is the largest number of nodes for which the resource is sufficient.
	Nodes int `json:"nodes"`
	// Used is the usage of the planned cluster as a fraction of the usable resource. Above 1, the
	// resource is not sufficient.
	Used float64 `json:"used"`
}

// Names of the components in limits and bills.
const (
	Store     = "store"
	APIServer = "kube-apiserver"
	Gateway   = "kube-gateway"
	Scheduler = "dist-scheduler"
)

// resources are the limited resources. used returns the fraction of the resource that a plan uses. The
// other fields are those of [Limit].
var resources = []struct {
	component string
	name      string
	machines  bool
	used      func(*Plan) float64
}{
	{APIServer, "watch cache of one resource, in each API server", false, func(p *Plan) float64 {
		return p.Needs.APIServers.BusiestCache / p.Costs.APIServer.CacheEventsMax
	}},
	{APIServer, "CPU of an API server, for watch events from the store", true, func(p *Plan) float64 {
		return p.Needs.APIServers.CoresEach / (p.Machines.Busy * p.Machines.APIServerCores)
	}},
	{APIServer, "memory of an API server, for its caches", true, func(p *Plan) float64 {
		return p.Needs.APIServers.GiBCaches / (p.Machines.Busy * p.Machines.APIServerGiB)
	}},
	{APIServer, "number of API servers", true, func(p *Plan) float64 {
		return float64(p.Needs.APIServers.Count) / float64(p.Machines.APIServers)
	}},
	{APIServer, "network of an API server", false, func(p *Plan) float64 {
		return p.Needs.APIServers.OutGbitEach / (p.Machines.Busy * p.Machines.NetworkGbit)
	}},
	{Store, "CPU of the store", true, func(p *Plan) float64 {
		return p.Needs.Store.Cores / (p.Machines.Busy * p.Machines.StoreCores)
	}},
	{Store, "the store's thread that applies writes", false, func(p *Plan) float64 {
		return p.Needs.Store.ThreadShare / p.Machines.Busy
	}},
	{Store, "memory of the store", true, func(p *Plan) float64 {
		return p.Needs.Store.GiB / (p.Machines.Busy * p.Machines.StoreGiB)
	}},
	{Store, "network of the store", false, func(p *Plan) float64 {
		return p.Needs.Store.OutGbit / (p.Machines.Busy * p.Machines.NetworkGbit)
	}},
	{Store, "disk of the store, for its log", false, func(p *Plan) float64 {
		return p.Needs.Store.LogMBps / (p.Machines.Busy * p.Machines.DiskMBps)
	}},
	{Scheduler, "the scheduler's thread that schedules pods", false, func(p *Plan) float64 {
		return p.Needs.Scheduler.ThreadShare / p.Machines.Busy
	}},
}

// Limits returns the limits of all resources, the smallest first.
func Limits(c Cluster, m Machines, costs Costs) []Limit {
	planFor := func(nodes int) *Plan {
		c.Nodes = nodes
		return Assess(c, m, costs)
	}
	planned := Assess(c, m, costs)
	found := make([]Limit, 0, len(resources))
	for _, r := range resources {
		found = append(found, Limit{
			Resource: r.name, Component: r.component, Machines: r.machines, Used: r.used(planned),
			Nodes: Largest(func(nodes int) bool { return r.used(planFor(nodes)) <= 1 }),
		})
	}
	slices.SortStableFunc(found, func(a, b Limit) int { return cmp.Compare(a.Nodes, b.Nodes) })
	return found
}

// Shortage returns the first resource of a component's machines that is not sufficient for the plan: cores,
// memory or number of machines. It returns "" if all are.
func (p *Plan) Shortage(component string) string {
	for _, r := range resources {
		if r.component == component && r.machines && r.used(p) > 1 {
			return r.name
		}
	}
	return ""
}

// unlimitedNodes is the number of nodes of a limit that no planned number of nodes reaches.
const unlimitedNodes = 1_000_000_000

// Largest returns the largest number of nodes from 0 to 1,000,000,000 for which sufficient returns true. If
// sufficient is true for a number, it must be true for all smaller numbers.
func Largest(sufficient func(int) bool) int {
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
