package storecluster

import (
	"fmt"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
)

// limit is what a figure of mem_etcd must meet, and what it should meet.
type limit struct {
	name, unit string
	must, aim  float64
	// atLeast is true if the limits are lower limits.
	atLeast bool
}

var (
	limitPut        = limit{name: "CPU of all members for a put, no disk", unit: "µs", must: 20, aim: 11}
	limitPutRatio   = limit{name: "CPU of all members for a put, etcd ÷ mem_etcd", unit: "×", must: 5, aim: 8, atLeast: true}
	limitKill       = limit{name: "no acknowledged write after kill -9 of the leader, p99, mem_etcd ÷ etcd", unit: "×", must: 1.2, aim: 0.7}
	limitTerminate  = limit{name: "no acknowledged write after SIGTERM of the leader, p99", unit: "ms", must: 200, aim: 50}
	limitRejoin     = limit{name: "a member without disk rejoins", unit: "s", must: 90, aim: 30}
	limitRejoinGap  = limit{name: "no acknowledged write while a member without disk rejoins, longest", unit: "ms", must: 50, aim: 10}
	limitLeaseRatio = []leaseLimit{
		{200, limit{name: "CPU of a Lease update at 200 a second, one member, etcd ÷ mem_etcd", unit: "×", must: 7.1, aim: 8, atLeast: true}},
		{1000, limit{name: "CPU of a Lease update at 1,000 a second, one member, etcd ÷ mem_etcd", unit: "×", must: 5.4, aim: 8, atLeast: true}},
		{5000, limit{name: "CPU of a Lease update at 5,000 a second, one member, etcd ÷ mem_etcd", unit: "×", must: 3.5, aim: 8, atLeast: true}},
	}
)

// leaseLimit is the limit at a rate of updates a second.
type leaseLimit struct {
	rate int
	limit
}

// judge appends the verdicts on a figure: the limit that it must meet, and the aim. operations is the number of operations
// behind the figure. If it is 0, reason says why the figure was not measured.
func (b *bench) judge(l limit, measured float64, operations int, reason string) {
	verdict := experiment.Verdict{Measured: measured, Unit: l.unit, Operations: int64(operations), AtLeast: l.atLeast}
	if operations == 0 {
		verdict.Measured, verdict.Reason = 0, reason
	}
	must, aim := verdict, verdict
	// The limits are stated for the sizes of medium scale.
	must.Name, must.Limit, must.Must = l.name+", must", l.must, b.Scale.Factor >= 1
	aim.Name, aim.Limit = l.name+", aim", l.aim
	b.Result.Verdicts = append(b.Result.Verdicts, must.Judged(), aim.Judged())
}

// judgeRatio judges the ratio of a figure of two stores, above ÷ below. operations is the smaller number of operations.
func (b *bench) judgeRatio(l limit, above, below string, values map[string]float64, operations int) {
	if values[above] == 0 || values[below] == 0 {
		b.judge(l, 0, 0, b.notMeasured())
		return
	}
	b.judge(l, values[above]/values[below], operations, "")
}

// notMeasured says why a figure of a store was not measured.
func (b *bench) notMeasured() string { return fmt.Sprintf("--stores has only %v", b.options.Stores) }
