package wire

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
)

// TestFoldKeepsNamesOfOffersOnly folds answers with more offers than fit, and checks that the names
// of dropped offers are removed and that the other offers keep their names.
func TestFoldKeepsNamesOfOffersOnly(t *testing.T) {
	var answers []*Answer
	for replica := range 30 {
		a := &Answer{Values: []string{NoValue, ""}, ImageSets: []string{""}}
		tier := index.Tier{Static: int64(replica), Count: 10}
		for node := range 10 {
			a.Names = append(a.Names, fmt.Sprintf("%d-%d", replica, node))
			tier.Offers = append(tier.Offers, index.Offer{Node: index.NodeID(node), Steps: []index.Step{{Static: int64(replica)}}})
		}
		a.Summary = index.Summary{Nodes: 10, Groups: []index.GroupSummary{{Count: 10, Floor: tier.Static, Tiers: []index.Tier{tier}}}}
		answers = append(answers, a)
	}
	all := Fold(answers, 25)
	offered := 0
	for _, tier := range all.Summary.Groups[0].Tiers {
		for _, offer := range tier.Offers {
			offered++
			var replica, node int
			if _, err := fmt.Sscanf(all.Names[offer.Node], "%d-%d", &replica, &node); err != nil || int64(replica) != offer.Steps[0].Static {
				t.Errorf("the offer with steps of replica %d has the name %q, want a node of this replica", offer.Steps[0].Static, all.Names[offer.Node])
			}
		}
	}
	if offered != 25 || len(all.Names) != 25 {
		t.Errorf("Fold() = %d offers with %d names, want 25 and 25", offered, len(all.Names))
	}
}

// TestFoldBoundsReferencedLabels folds answers with more labels than an answer may have. The merged answer then says that
// it has all labels.
func TestFoldBoundsReferencedLabels(t *testing.T) {
	answer := func(replica string, first, end int) *Answer {
		a := &Answer{LabelVersions: map[string]int64{replica: 1}}
		for i := first; i < end; i++ {
			a.ReferencedLabels = append(a.ReferencedLabels, fmt.Sprint("label-", i))
		}
		return a
	}
	for _, c := range []struct {
		name     string
		answers  []*Answer
		labels   int
		all      bool
		versions int
	}{
		{"few labels", []*Answer{answer("a", 0, 10), answer("b", 5, 20), answer("c", 0, 0)}, 20, false, 3},
		{"as many as possible", []*Answer{answer("a", 0, MaxReferencedLabels), answer("b", 5, 20)}, MaxReferencedLabels, false, 2},
		{"too many", []*Answer{answer("a", 0, MaxReferencedLabels), answer("b", MaxReferencedLabels, MaxReferencedLabels+1), answer("c", 0, 5)}, 0, true, 3},
		{"too many on one replica", []*Answer{answer("a", 0, 10), {AllLabelsReferenced: true}}, 0, true, 1},
	} {
		all := Fold(c.answers, 1)
		if len(all.ReferencedLabels) != c.labels || all.AllLabelsReferenced != c.all || len(all.LabelVersions) != c.versions {
			t.Errorf("%s: Fold() = %d labels, all %t, %d versions; want %d, %t, %d",
				c.name, len(all.ReferencedLabels), all.AllLabelsReferenced, len(all.LabelVersions), c.labels, c.all, c.versions)
		}
	}
}

// TestCountersAreTranslated checks that a query has only the values to which its counters refer, and that the counters of
// the answer remain as they are.
func TestCountersAreTranslated(t *testing.T) {
	values := []string{NoValue, "", "unused", "a", "b"}
	counters := []index.CounterSummary{
		{Total: 5, Values: []index.ValueCount{{Value: 4, Count: 2, Nodes: 1}, {Value: 3, Count: 3, Nodes: 2}}}, {}, {Values: []index.ValueCount{{Value: 4, Count: 1}}},
	}
	translated, used := TranslateCounters(counters, values)
	for i, counter := range translated {
		for j, v := range counter.Values {
			if before := counters[i].Values[j]; used[v.Value] != values[before.Value] || v.Count != before.Count || v.Nodes != before.Nodes {
				t.Errorf("counter %d: %+v of %q, want the counts of %+v of %q", i, v, used[v.Value], before, values[before.Value])
			}
		}
	}
	if len(translated) != 3 || translated[0].Total != 5 || len(used) != 2 || counters[0].Values[0].Value != 4 {
		t.Errorf("TranslateCounters() = %+v with values %q, want 3 counters with 2 values, and the given ones unchanged", translated, used)
	}
}

// TestFoldKeepsFirstFailure checks that the error of a replica that failed to evaluate the pod is bounded, and that a
// relay passes it on without making the replica absent.
func TestFoldKeepsFirstFailure(t *testing.T) {
	first, second := FailedAnswer("a", errors.New(strings.Repeat("é", MaxFailed))), FailedAnswer("b", errors.New("no such key"))
	for _, a := range []*Answer{first, second} {
		if err := a.validate(); err != nil {
			t.Errorf("validate() of a failed answer = %v, want nil", err)
		}
	}
	all := Fold([]*Answer{seedAnswer(), first, second}, 1)
	if all.Failed != "error" || len(all.Absent) > 0 || all.Summary.Nodes != 1 {
		t.Errorf("Fold() = failure %q, absent %v, %d nodes, want error, none, 1", all.Failed, all.Absent, all.Summary.Nodes)
	}
	if err := (&Answer{Failed: strings.Repeat("x", MaxFailed+1)}).validate(); err == nil {
		t.Error("validate() of an answer with a longer failure = nil, want an error")
	}
	if data, err := Encode(first); err != nil || Decode(data, &Answer{}) != nil {
		t.Errorf("the failure that was cut cannot be encoded and decoded: %v", err)
	}
}
