package wire

import (
	"fmt"
	"testing"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
)

// TestRefusalsMergeEqualStatuses adds refusals that differ in one field each, twice. Only equal ones are merged.
func TestRefusalsMergeEqualStatuses(t *testing.T) {
	counts := func(values []int32, host, extra []int64) *index.NodeCounts {
		return &index.NodeCounts{Topology: index.Topology{Values: values}, Host: host, Extra: extra}
	}
	different := []Refusal{
		{Code: 1, Plugin: "a", Reasons: []string{"b"}}, {Code: 2, Plugin: "a", Reasons: []string{"b"}}, {Code: 1, Plugin: "ab", Reasons: []string{""}},
		{Code: 1, Plugin: "a", Reasons: []string{"b", "c"}}, {Code: 1, Plugin: "a", Reasons: []string{"bc"}}, {Code: 1, Plugin: "a"},
		{Code: 1, Plugin: "a", Reasons: []string{"b"}, Counts: counts([]int32{1}, nil, nil)}, {Code: 1, Plugin: "a", Reasons: []string{"b"}, Counts: counts([]int32{2}, nil, nil)},
		{Code: 1, Plugin: "a", Reasons: []string{"b"}, Counts: counts([]int32{1}, []int64{1}, nil)}, {Code: 1, Plugin: "a", Reasons: []string{"b"}, Counts: counts([]int32{1}, nil, []int64{1})},
	}
	var all Refusals
	for _, nodes := range []int{2, 3} {
		for _, refusal := range different {
			refusal.Nodes = nodes
			all.Add(refusal)
		}
	}
	if len(all.List()) != len(different) {
		t.Errorf("%d refusals, want %d", len(all.List()), len(different))
	}
	for _, refusal := range all.List() {
		if refusal.Nodes != 5 {
			t.Errorf("%+v, want 5 nodes", refusal)
		}
	}
}

// TestFoldOfManyRefusals folds answers in which each node has a reason of its own, as with a taint per node. Comparing
// each reason with all others would take minutes.
func TestFoldOfManyRefusals(t *testing.T) {
	const nodes = 200_000
	var answers []*Answer
	for replica := range 2 {
		a := &Answer{Values: []string{NoValue, ""}, Summary: index.Summary{Nodes: nodes}}
		for i := range nodes {
			a.Refusals = append(a.Refusals, Refusal{Code: 3, Plugin: "TaintToleration", Reasons: []string{fmt.Sprintf("node(s) had untolerated taint {node-%d-%d: }", replica, i)}, Nodes: 1})
		}
		answers = append(answers, a)
	}
	started := time.Now()
	if merged := Fold(answers, 1); len(merged.Refusals) != 2*nodes {
		t.Errorf("%d refusals, want %d", len(merged.Refusals), 2*nodes)
	}
	if took := time.Since(started); took > time.Minute {
		t.Errorf("Fold() took %v, want seconds", took)
	}
}
