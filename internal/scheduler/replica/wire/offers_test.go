package wire

import (
	"testing"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
)

// TestAnswerSizeFollowsUse checks that offers grow for batches over many nodes, steps grow for
// batches over few nodes, and both shrink for single pods.
func TestAnswerSizeFollowsUse(t *testing.T) {
	wide := AnswerSize{}.Next(index.Used{})
	for range 2 {
		wide = wide.Next(index.Used{Offers: wide.Offers, Steps: 1})
	}
	if wide != (AnswerSize{MostOffers, LeastSteps}) {
		t.Errorf("a burst over many nodes: %+v", wide)
	}
	deep := AnswerSize{}.Next(index.Used{})
	for range 5 {
		deep = deep.Next(index.Used{Offers: 1, Steps: deep.Steps + 1, StepsExhausted: true})
	}
	if deep != (AnswerSize{maxOffersTimesSteps / MostSteps, MostSteps}) {
		t.Errorf("a burst over few nodes: %+v", deep)
	}
	for _, w := range []AnswerSize{wide, deep} {
		for range 10 {
			w = w.Next(index.Used{Offers: 0, Steps: 0})
		}
		if w != (AnswerSize{LeastOffers, LeastSteps}) {
			t.Errorf("one pod at a time: %+v", w)
		}
	}
	if steady := (AnswerSize{64, 16}).Next(index.Used{Offers: 20, Steps: 5}); steady != (AnswerSize{64, 16}) {
		t.Errorf("after a third was used: %+v", steady)
	}
}
