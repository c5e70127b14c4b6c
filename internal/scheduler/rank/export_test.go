package rank

import "k8s.io/kubernetes/pkg/scheduler/apis/config"

// LeastSample exports leastSample.
const LeastSample = leastSample

// NewNominee exports newNominee.
var NewNominee = newNominee

// Tracked returns the number of pods whose nominated node is remembered.
func (n *Nominations) Tracked() int { return len(n.lastNode) }

// SampleOf returns how many of a number of nodes a profile scores; 0 means all.
func SampleOf(cfg config.KubeSchedulerProfile, nodes int) int {
	p := Profile{percentage: percentageOf(cfg)}
	return p.sample(nodes)
}
