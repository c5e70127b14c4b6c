package wire

import (
	"fmt"
	"testing"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
)

// TestFoldKeepsNamesOfOffersOnly: the names of the others would add up on the way.
func TestFoldKeepsNamesOfOffersOnly(t *testing.T) {
	var answers []*Answer
	for shard := range 30 {
		a := &Answer{Values: []string{NoValue, ""}, Profiles: []string{""}}
		tier := index.Tier{Static: int64(shard), Count: 10}
		for node := range 10 {
			a.Names = append(a.Names, fmt.Sprintf("%d-%d", shard, node))
			tier.Offers = append(tier.Offers, index.Offer{Slot: index.Slot(node), Steps: []index.Step{{Static: int64(shard)}}})
		}
		a.Summary = index.Summary{Nodes: 10, Groups: []index.GroupSummary{{Count: 10, Floor: tier.Static, Tiers: []index.Tier{tier}}}}
		answers = append(answers, a)
	}
	all := Fold(answers, 25)
	offered := 0
	for _, tier := range all.Summary.Groups[0].Tiers {
		for _, offer := range tier.Offers {
			offered++
			var shard, node int
			if _, err := fmt.Sscanf(all.Names[offer.Slot], "%d-%d", &shard, &node); err != nil || int64(shard) != offer.Steps[0].Static {
				t.Errorf("%s is offered for a node of shard %d", all.Names[offer.Slot], offer.Steps[0].Static)
			}
		}
	}
	if offered != 25 || len(all.Names) != 25 {
		t.Errorf("%d offers, %d names", offered, len(all.Names))
	}
}
