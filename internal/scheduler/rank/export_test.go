package rank

import "k8s.io/kubernetes/pkg/scheduler/apis/config"

// LeastSample is the smallest sample.
const LeastSample = leastSample

// NewNominee makes a nominee of a pod.
var NewNominee = newNominee

// Tracked is the number of pods whose nominated node is remembered.
func (n *Nominations) Tracked() int { return len(n.lastNode) }

// SampleOf is the number of nodes that a profile scores, of so many.
func SampleOf(cfg config.KubeSchedulerProfile, nodes int) int {
	p := Profile{percentage: percentageOf(cfg)}
	return p.sample(nodes)
}
