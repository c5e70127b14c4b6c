package plan

import "math"

// Step is something to change, and how many nodes are possible then.
type Step struct {
	Change string `json:"change"`
	Nodes  int    `json:"nodes"`
}

// levers are what can be changed.
var levers = []struct {
	change string
	pull   func(*Cluster, *Machines) bool // false if there is nothing to change
}{
	{"keep Leases out of the watch cache: --lease-cache=false, kube-apiserver --watch-cache-sizes=leases.coordination.k8s.io#0", func(c *Cluster, _ *Machines) bool {
		was := c.LeasesCached
		c.LeasesCached = false
		return was
	}},
	{"log no Leases: --lease-log=false, mem_etcd --wal-mode-prefix=/registry/leases/=none", func(c *Cluster, _ *Machines) bool {
		was := c.LeasesLogged
		c.LeasesLogged = false
		return was
	}},
	{"renew Leases half as often: --lease-interval", func(c *Cluster, _ *Machines) bool { c.LeaseInterval *= 2; return true }},
	{"a store with twice the cores: --store-cores", func(_ *Cluster, m *Machines) bool { m.StoreCores *= 2; return true }},
	{"a store with twice the memory: --store-memory", func(_ *Cluster, m *Machines) bool { m.StoreGiB *= 2; return true }},
	{"a disk of twice the speed: --disk", func(_ *Cluster, m *Machines) bool { m.DiskMBps *= 2; return true }},
	{"API servers with twice the cores: --apiserver-cores", func(_ *Cluster, m *Machines) bool { m.APIServerCores *= 2; return true }},
	{"API servers with twice the memory: --apiserver-memory", func(_ *Cluster, m *Machines) bool { m.APIServerGiB *= 2; return true }},
	{"twice as many API servers: --max-apiservers", func(_ *Cluster, m *Machines) bool { m.APIServers *= 2; return true }},
	{"twice the bandwidth: --network", func(_ *Cluster, m *Machines) bool { m.NetworkGbit *= 2; return true }},
	{"pods that live twice as long: --pod-life", func(c *Cluster, _ *Machines) bool { c.PodLife *= 2; return true }},
	{"fill the cluster half as fast: --fill", func(c *Cluster, _ *Machines) bool { c.Fill /= 2; return c.Fill > 0 }},
}

// doubling is what to change, one after the other, until twice as many nodes are possible;
// each time what helps most. It ends early if nothing helps.
func doubling(c Cluster, m Machines, costs Costs) []Step {
	now := limits(c, m, costs)
	goal := 2 * now[0].Nodes
	steps := []Step{}
	for range 2 * len(levers) {
		if now[0].Nodes >= goal {
			break
		}
		best, bestC, bestM, bestNow := -1, c, m, now
		for i := range levers {
			triedC, triedM := c, m
			if !levers[i].pull(&triedC, &triedM) {
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
		steps = append(steps, Step{levers[best].change, now[0].Nodes})
	}
	return steps
}

// better says whether some limits are further away than others on the way to a goal: the
// first counts, and if several are equally near how far the others are.
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
