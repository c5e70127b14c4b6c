package experiment

import (
	"fmt"

	"github.com/k8s-1m/k8s-1m/internal/util/number"
)

// Limits of the Kubernetes SLOs, in seconds at the 99th percentile.
const (
	mutatingLimit   = 1.0
	resourceLimit   = 1.0
	collectionLimit = 30.0
	startupLimit    = 5.0
)

// Verdict compares a measured value with an objective.
type Verdict struct {
	Name     string  `json:"name"`
	Measured float64 `json:"measured"`
	Limit    float64 `json:"limit"`
	Unit     string  `json:"unit"`
	// Of is the number of measured operations. If it is 0, the objective was not measured.
	Of  int64 `json:"of"`
	Met bool  `json:"met"`
	// Worst is the kind of call with the worst value, which is Measured.
	Worst string `json:"worst,omitempty"`
}

func (v Verdict) String() string {
	word := "met"
	switch {
	case v.Of == 0:
		word = "not measured"
	case !v.Met:
		word = "MISSED"
	}
	text := fmt.Sprintf("%s: %s ≤ %s %s: %s", v.Name, number.Text(v.Measured), number.Text(v.Limit), v.Unit, word)
	if v.Worst != "" {
		text += " (worst: " + v.Worst + ")"
	}
	return text
}

func judge(name string, seconds, limit float64, of int64, worst string) Verdict {
	return Verdict{Name: name, Measured: seconds, Limit: limit, Unit: "s", Of: of, Met: of > 0 && seconds <= limit, Worst: worst}
}

// JudgeCalls compares the calls of an API server with the objectives. Every kind of call must meet its
// objective, so each verdict contains the worst kind.
func JudgeCalls(calls []Call) []Verdict {
	kinds := []struct {
		name  string
		limit float64
		is    func(Call) bool
	}{
		{"mutating calls of one object, p99", mutatingLimit, func(c Call) bool { return c.mutates() && c.Scope == "resource" }},
		{"reads of one object, p99", resourceLimit, func(c Call) bool { return c.reads() && c.Scope == "resource" }},
		{"reads of a namespace or the cluster, p99", collectionLimit, func(c Call) bool { return c.reads() && c.Scope != "resource" }},
	}
	var verdicts []Verdict
	for _, kind := range kinds {
		var worst Call
		var all int64
		for _, call := range calls {
			if !kind.is(call) {
				continue
			}
			all += call.Count
			if call.P99 >= worst.P99 {
				worst = call
			}
		}
		verdicts = append(verdicts, judge(kind.name, worst.P99, kind.limit, all, worst.Title()))
	}
	return verdicts
}

// JudgeStartup compares the startup latency of stateless pods with its objective.
func JudgeStartup(startup *Latencies) Verdict {
	return judge("startup of stateless pods, p99", startup.Millis(99)/1000, startupLimit, startup.Count(), "")
}
