package plan

import "math"

// Step is one change, and the number of nodes that is possible after it.
type Step struct {
	Change string `json:"change"`
	Nodes  int    `json:"nodes"`
}

// changes are the changes that [doubling] considers.
var changes = []struct {
	description string
	apply       func(*Cluster, *Machines) bool // false if the change is already made
}{
	{"exclude Leases from the watch cache: --lease-cache=false, kube-apiserver --watch-cache-sizes=leases.coordination.k8s.io#0", func(c *Cluster, _ *Machines) bool {
		was := c.LeasesCached
		c.LeasesCached = false
		return was
	}},
	{"exclude Leases from the store's log: --lease-log=false, mem_etcd --wal-mode-prefix=/registry/leases/=none", func(c *Cluster, _ *Machines) bool {
		was := c.LeasesLogged
		c.LeasesLogged = false
		return was
	}},
	{"double the interval of Lease renewals: --lease-interval", func(c *Cluster, _ *Machines) bool { c.LeaseInterval *= 2; return true }},
	{"double the cores of the store: --store-cores", func(_ *Cluster, m *Machines) bool { m.StoreCores *= 2; return true }},
	{"double the memory of the store: --store-memory", func(_ *Cluster, m *Machines) bool { m.StoreGiB *= 2; return true }},
	{"double the write rate of the store's disk: --disk", func(_ *Cluster, m *Machines) bool { m.DiskMBps *= 2; return true }},
	{"double the cores of each API server: --apiserver-cores", func(_ *Cluster, m *Machines) bool { m.APIServerCores *= 2; return true }},
	{"double the memory of each API server: --apiserver-memory", func(_ *Cluster, m *Machines) bool { m.APIServerGiB *= 2; return true }},
	{"double the number of API servers: --max-apiservers", func(_ *Cluster, m *Machines) bool { m.APIServers *= 2; return true }},
	{"double the network bandwidth: --network", func(_ *Cluster, m *Machines) bool { m.NetworkGbit *= 2; return true }},
	{"double the lifetime of pods: --pod-life", func(c *Cluster, _ *Machines) bool { c.PodLife *= 2; return true }},
	{"halve the rate at which the cluster is filled: --fill", func(c *Cluster, _ *Machines) bool { c.Fill /= 2; return c.Fill > 0 }},
}

// doubling returns the changes, in order, that make twice as many nodes possible. Each step is
// the change that raises the limits most, given the previous steps. It ends early if no change raises them.
func doubling(c Cluster, m Machines, costs Costs) []Step {
	now := limits(c, m, costs)
	goal := 2 * now[0].Nodes
	steps := []Step{}
	for range 2 * len(changes) {
		if now[0].Nodes >= goal {
			break
		}
		best, bestC, bestM, bestNow := -1, c, m, now
		for i := range changes {
			triedC, triedM := c, m
			if !changes[i].apply(&triedC, &triedM) {
				continue
			}
			if then := limits(triedC, triedM, costs); better(then, bestNow, goal) {
				best, bestC, bestM, bestNow = i, triedC, triedM, then
			}
		}
		if best < 0 {
			break
		}
		c, m, now = bestC, bestM, bestNow
		steps = append(steps, Step{changes[best].description, now[0].Nodes})
	}
	return steps
}

// better reports whether the limits a are closer to the goal than the limits b. It compares the tightest
// limits and, if they are equal, the geometric means of all limits.
func better(a, b []Limit, goal int) bool {
	reached := func(limits []Limit) (first int, all float64) {
		for _, l := range limits {
			all += math.Log1p(float64(min(l.Nodes, goal)))
		}
		return min(limits[0].Nodes, goal), all
	}
	firstA, allA := reached(a)
	firstB, allB := reached(b)
	if firstA != firstB {
		return firstA > firstB
	}
	return allA > allB+1e-9
}
