package plan

import "math"

// Step is one change of a cluster or its machines. Nodes is the maximum number of nodes after this change
// and the changes before it.
type Step struct {
	Change string `json:"change"`
	Nodes  int    `json:"nodes"`
}

// changes are the changes that [doublingSteps] considers.
var changes = []struct {
	description string
	apply       func(*Cluster, *Machines) bool // returns false if the change has no effect
}{
	{"exclude Leases from the watch cache: k1m plan --lease-cache=false; in the cluster, kube-apiserver --watch-cache-sizes=leases.coordination.k8s.io#0", func(c *Cluster, _ *Machines) bool {
		cached := c.LeasesCached
		c.LeasesCached = false
		return cached
	}},
	{"exclude Leases from the store's log: k1m plan --lease-log=false; in the cluster, mem_etcd --wal-mode-prefix=/registry/leases/=none", func(c *Cluster, _ *Machines) bool {
		logged := c.LeasesLogged
		c.LeasesLogged = false
		return logged
	}},
	{"double the interval of Lease renewals: --lease-interval", func(c *Cluster, _ *Machines) bool { c.LeaseInterval *= 2; return true }},
	{"double the cores of the store: --store-cores", func(_ *Cluster, m *Machines) bool { m.StoreCores *= 2; return true }},
	{"double the memory of the store: --store-memory", func(_ *Cluster, m *Machines) bool { m.StoreGiB *= 2; return true }},
	{"double the write rate of the store's disk: --disk", func(_ *Cluster, m *Machines) bool { m.DiskMBps *= 2; return true }},
	{"double the cores of each API server: --apiserver-cores", func(_ *Cluster, m *Machines) bool { m.APIServerCores *= 2; return true }},
	{"double the memory of each API server: --apiserver-memory", func(_ *Cluster, m *Machines) bool { m.APIServerGiB *= 2; return true }},
	{"double the maximum number of API servers: --max-apiservers", func(_ *Cluster, m *Machines) bool { m.APIServers *= 2; return true }},
	{"double the network bandwidth: --network", func(_ *Cluster, m *Machines) bool { m.NetworkGbit *= 2; return true }},
	{"double the lifetime of pods: --pod-life", func(c *Cluster, _ *Machines) bool { c.PodLife *= 2; return true }},
	{"halve the rate at which the cluster is filled: --fill", func(c *Cluster, _ *Machines) bool { c.Fill /= 2; return c.Fill > 0 }},
}

// doublingSteps returns a sequence of changes that together double the maximum number of nodes. Each step
// is the change that raises the limits most after the previous steps. The sequence ends early if no change
// raises the limits.
func doublingSteps(c Cluster, m Machines, costs Costs) []Step {
	current := Limits(c, m, costs)
	goal := 2 * current[0].Nodes
	steps := []Step{}
	for range 2 * len(changes) {
		if current[0].Nodes >= goal {
			break
		}
		best, bestC, bestM, bestLimits := -1, c, m, current
		for i := range changes {
			triedC, triedM := c, m
			if !changes[i].apply(&triedC, &triedM) {
				continue
			}
			if tried := Limits(triedC, triedM, costs); closerToGoal(tried, bestLimits, goal) {
				best, bestC, bestM, bestLimits = i, triedC, triedM, tried
			}
		}
		if best < 0 {
			break
		}
		c, m, current = bestC, bestM, bestLimits
		steps = append(steps, Step{changes[best].description, current[0].Nodes})
	}
	return steps
}

// closerToGoal reports whether the limits a are closer to the goal than the limits b. It compares the
// tightest limits and, if these are equal, the geometric means of all limits. A limit above the
// goal counts as the goal.
func closerToGoal(a, b []Limit, goal int) bool {
	measure := func(limits []Limit) (tightest int, sumOfLogarithms float64) {
		for _, l := range limits {
			sumOfLogarithms += math.Log1p(float64(min(l.Nodes, goal)))
		}
		return min(limits[0].Nodes, goal), sumOfLogarithms
	}
	tightestA, sumA := measure(a)
	tightestB, sumB := measure(b)
	if tightestA != tightestB {
		return tightestA > tightestB
	}
	return sumA > sumB+1e-9
}
