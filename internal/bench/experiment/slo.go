package experiment

import (
	"fmt"
	"strings"

	"github.com/k8s-1m/k8s-1m/internal/util/number"
)

// Limits of the Kubernetes SLOs for the 99th percentile, in seconds.
const (
	mutatingLimit   = 1.0
	resourceLimit   = 1.0
	collectionLimit = 30.0
	startupLimit    = 5.0
)

// Verdict is the comparison of a measured value with an objective.
type Verdict struct {
	Name     string  `json:"name"`
	Measured float64 `json:"measured"`
	Limit    float64 `json:"limit"`
	Unit     string  `json:"unit"`
	// Operations is the number of measured operations. If it is 0, the objective was not measured.
	Operations int64 `json:"of"`
	Met        bool  `json:"met"`
	// AtLeast is true if Limit is a lower limit. Otherwise it is an upper limit.
	AtLeast bool `json:"atLeast,omitempty"`
	// Must is true if the run fails when the objective is not met.
	Must bool `json:"must,omitempty"`
	// Worst is the kind of call with the largest value, if several kinds have the same objective.
	// Measured is the value of this kind.
	Worst string `json:"worst,omitempty"`
	// Reason says why the objective was not measured, if Operations is 0.
	Reason string `json:"reason,omitempty"`
}

func (v Verdict) String() string {
	if v.Operations == 0 && v.Reason != "" {
		return fmt.Sprintf("%s: %s %s %s: not measured: %s", v.Name, v.Relation(), number.Text(v.Limit), v.Unit, v.Reason)
	}
	word := "met"
	switch {
	case v.Operations == 0:
		word = "not measured"
	case !v.Met:
		word = "MISSED"
	}
	text := fmt.Sprintf("%s: %s %s %s %s: %s", v.Name, number.Text(v.Measured), v.Relation(), number.Text(v.Limit), v.Unit, word)
	if v.Worst != "" {
		text += " (worst: " + v.Worst + ")"
	}
	return text
}

// Relation returns the sign between the measured value and the limit.
func (v Verdict) Relation() string {
	if v.AtLeast {
		return "≥"
	}
	return "≤"
}

// Judged returns the verdict with Met set.
func (v Verdict) Judged() Verdict {
	v.Met = v.Operations > 0 && (v.Measured == v.Limit || v.Measured > v.Limit == v.AtLeast)
	return v
}

// missed returns an error if an objective with Must is not met.
func (r *Result) missed() error {
	var names []string
	for _, v := range r.Verdicts {
		if v.Must && !v.Met {
			names = append(names, v.String())
		}
	}
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("%d objectives are missed: %s", len(names), strings.Join(names, "; "))
}

// newVerdict compares a latency with its limit, both in seconds.
func newVerdict(name string, seconds, limit float64, operations int64, worst string) Verdict {
	return Verdict{
		Name: name, Measured: seconds, Limit: limit, Unit: "s", Operations: operations, Worst: worst,
	}.Judged()
}

// JudgeCalls compares the latencies of API calls with the objectives. Every kind of call must meet the
// objective, so the verdict is that of the slowest kind.
func JudgeCalls(calls []Call) []Verdict {
	groups := []struct {
		name     string
		limit    float64
		contains func(Call) bool
	}{
		{"mutating calls of one object, p99", mutatingLimit, func(c Call) bool { return c.mutates() && c.Scope == "resource" }},
		{"reads of one object, p99", resourceLimit, func(c Call) bool { return c.reads() && c.Scope == "resource" }},
		{"reads of a namespace or the cluster, p99", collectionLimit, func(c Call) bool { return c.reads() && c.Scope != "resource" }},
	}
	var verdicts []Verdict
	for _, group := range groups {
		var worst Call
		var operations int64
		for _, call := range calls {
			if !group.contains(call) {
				continue
			}
			operations += call.Count
			if call.P99 >= worst.P99 {
				worst = call
			}
		}
		verdicts = append(verdicts, newVerdict(group.name, worst.P99, group.limit, operations, worst.Title()))
	}
	return verdicts
}

// JudgeStartup compares the startup latency of stateless pods with the objective.
func JudgeStartup(startup *Latencies) Verdict {
	return newVerdict("startup of stateless pods, p99", startup.Millis(99)/1000, startupLimit, startup.Count(), "")
}
