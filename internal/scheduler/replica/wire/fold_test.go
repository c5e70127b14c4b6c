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
