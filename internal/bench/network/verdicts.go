package network

import "github.com/k8s-1m/k8s-1m/internal/bench/experiment"

// The limits of the network.
var (
	limitPods       = experiment.Limit{Name: "pods that reach each other in a lab", Unit: "pods", Must: 200 * 5, Aim: 500 * 10, AtLeast: true}
	limitAdd        = experiment.Limit{Name: "adding a pod by the CNI plugins, p99", Unit: "ms", Must: 150, Aim: 60}
	limitThroughput = experiment.Limit{Name: "throughput from pod to pod, network ÷ plain routing", Unit: "×", Must: 0.9, Aim: 0.98, AtLeast: true}
	limitAnswers    = experiment.Limit{Name: "neighbour answers, network-agent ÷ ndppd", Unit: "×", Must: 1, Aim: 10, AtLeast: true}
	limitLeave      = experiment.Limit{Name: "a deleted node is gone everywhere after", Unit: "s", Must: 30, Aim: 5}
)
