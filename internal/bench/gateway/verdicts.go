package gateway

import (
	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
)

// limit is what a figure of kube-gateway must meet, and what it should meet.
type limit struct {
	name, unit string
	must, aim  float64
	// atLeast is true if the limits are lower limits.
	atLeast bool
}

var (
	limitCPU        = limit{name: "CPU for a small GET", unit: "µs", must: 40, aim: 20}
	limitP50        = limit{name: "added p50 at half load", unit: "ms", must: 0.5, aim: 0.2}
	limitP99        = limit{name: "added p99 at half load", unit: "ms", must: 2, aim: 1}
	limitLists      = limit{name: "throughput of lists against direct", unit: "×", must: 0.9, aim: 0.98, atLeast: true}
	limitEvents     = limit{name: "throughput of watch events against direct", unit: "×", must: 0.9, aim: 0.98, atLeast: true}
	limitBalance    = limit{name: "most to least loaded API server after one was killed", unit: "×", must: 1.3, aim: 1.1}
	limitRelists    = limit{name: "lists that rebalancing causes", unit: "lists", must: 0, aim: 0}
	limitMemory     = limit{name: "peak memory of the API servers in a LIST storm against direct", unit: "×", must: 0.5, aim: 0.3}
	limitLeases     = limit{name: "p99 of Lease renewals in a LIST storm", unit: "s", must: 2, aim: 0.5}
	limitFlood      = limit{name: "p99 of other clients while a throttled client floods, against a quiet time", unit: "×", must: 2, aim: 1.2}
	limitNotReady   = limit{name: "nodes that became NotReady after the gateway was killed", unit: "nodes"}
	limitConnection = limit{name: "memory of a connection with a watch", unit: "KiB", must: 60, aim: 40}

	// The limits of the experiment node-path.
	limitRenewal      = limit{name: "CPU for a Lease renewal", unit: "µs", must: 60, aim: 35}
	limitRenewalRatio = limit{name: "CPU for a Lease renewal, kube-apiserver ÷ kube-gateway", unit: "×", must: 20, aim: 40, atLeast: true}
	limitDetection    = limit{name: "last renewal served after a webhook was created", unit: "s", must: 1, aim: 0.3}
	limitFailure      = limit{name: "failed node NotReady later than with direct connections, median", unit: "s", must: 5, aim: 2}
	limitKubelet      = limit{name: "memory of a kubelet with its watches", unit: "KiB", must: 60, aim: 30}
	limitKubeletRatio = limit{name: "memory of a kubelet with its watches, kube-apiserver ÷ kube-gateway", unit: "×", must: 8, aim: 15, atLeast: true}
	limitDelivery     = limit{name: "CPU for an event of a kubelet's watch", unit: "µs", must: 10, aim: 5}
	limitReconnects   = limit{name: "all kubelets have their watches again after their connections were closed", unit: "s", must: 60, aim: 20}
)

// judge appends the verdicts on a figure: the limit that it must meet, and the aim. operations is the number
// of operations behind the figure. worst names the case with this figure, if there are several.
func (b *bench) judge(l limit, measured float64, operations int, worst string) {
	verdict := experiment.Verdict{
		Measured: measured, Unit: l.unit, Operations: int64(operations), AtLeast: l.atLeast, Worst: worst,
	}
	must, aim := verdict, verdict
	// The limits are stated for the sizes of medium scale.
	must.Name, must.Limit, must.Must = l.name+", must", l.must, b.Scale.Factor >= 1
	aim.Name, aim.Limit = l.name+", aim", l.aim
	b.Result.Verdicts = append(b.Result.Verdicts, must.Judged(), aim.Judged())
}
