package gateway

import (
	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
)

// The limits of the experiment gateway.
var (
	limitCPU        = experiment.Limit{Name: "CPU for a small GET", Unit: "µs", Must: 40, Aim: 20}
	limitP50        = experiment.Limit{Name: "added p50 at half load", Unit: "ms", Must: 0.5, Aim: 0.2}
	limitP99        = experiment.Limit{Name: "added p99 at half load", Unit: "ms", Must: 2, Aim: 1}
	limitLists      = experiment.Limit{Name: "throughput of lists against direct", Unit: "×", Must: 0.9, Aim: 0.98, AtLeast: true}
	limitEvents     = experiment.Limit{Name: "throughput of watch events against direct", Unit: "×", Must: 0.9, Aim: 0.98, AtLeast: true}
	limitBalance    = experiment.Limit{Name: "most to least loaded API server after one was killed", Unit: "×", Must: 1.3, Aim: 1.1}
	limitRelists    = experiment.Limit{Name: "lists that rebalancing causes", Unit: "lists", Must: 0, Aim: 0}
	limitMemory     = experiment.Limit{Name: "peak memory of the API servers in a LIST storm against direct", Unit: "×", Must: 0.5, Aim: 0.3}
	limitLeases     = experiment.Limit{Name: "p99 of Lease renewals in a LIST storm", Unit: "s", Must: 2, Aim: 0.5}
	limitFlood      = experiment.Limit{Name: "p99 of other clients while a throttled client floods, against a quiet time", Unit: "×", Must: 2, Aim: 1.2}
	limitNotReady   = experiment.Limit{Name: "nodes that became NotReady after the gateway was killed", Unit: "nodes"}
	limitConnection = experiment.Limit{Name: "memory of a connection with a watch", Unit: "KiB", Must: 60, Aim: 40}

	// The limits of the experiment node-path.
	limitRenewal      = experiment.Limit{Name: "CPU for a Lease renewal", Unit: "µs", Must: 60, Aim: 35}
	limitRenewalRatio = experiment.Limit{Name: "CPU for a Lease renewal, kube-apiserver ÷ kube-gateway", Unit: "×", Must: 20, Aim: 40, AtLeast: true}
	limitDetection    = experiment.Limit{Name: "last renewal served after a webhook was created", Unit: "s", Must: 1, Aim: 0.3}
	limitFailure      = experiment.Limit{Name: "failed node NotReady later than with direct connections, median", Unit: "s", Must: 5, Aim: 2}
	limitKubelet      = experiment.Limit{Name: "memory of a kubelet with its watches", Unit: "KiB", Must: 60, Aim: 30}
	limitKubeletRatio = experiment.Limit{Name: "memory of a kubelet with its watches, kube-apiserver ÷ kube-gateway", Unit: "×", Must: 8, Aim: 15, AtLeast: true}
	limitDelivery     = experiment.Limit{Name: "CPU for an event of a kubelet's watch", Unit: "µs", Must: 10, Aim: 5}
	limitReconnects   = experiment.Limit{Name: "all kubelets have their watches again after their connections were closed", Unit: "s", Must: 60, Aim: 20}
)
