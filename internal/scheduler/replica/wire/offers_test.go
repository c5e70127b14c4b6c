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
		t.Errorf("after a burst over many nodes the size is %+v, want %+v", wide, AnswerSize{MostOffers, LeastSteps})
	}
	deep := AnswerSize{}.Next(index.Used{})
	for range 5 {
		deep = deep.Next(index.Used{Offers: 1, Steps: deep.Steps + 1, StepsExhausted: true})
	}
	if deep != (AnswerSize{maxOffersTimesSteps / MostSteps, MostSteps}) {
		t.Errorf("after a burst over few nodes the size is %+v, want %+v", deep, AnswerSize{maxOffersTimesSteps / MostSteps, MostSteps})
	}
	for _, size := range []AnswerSize{wide, deep} {
		for range 10 {
			size = size.Next(index.Used{Offers: 0, Steps: 0})
		}
		if size != (AnswerSize{LeastOffers, LeastSteps}) {
			t.Errorf("after single pods the size is %+v, want %+v", size, AnswerSize{LeastOffers, LeastSteps})
		}
	}
	if steady := (AnswerSize{64, 16}).Next(index.Used{Offers: 20, Steps: 5}); steady != (AnswerSize{64, 16}) {
		t.Errorf("after a third was used the size is %+v, want %+v", steady, AnswerSize{64, 16})
	}
}
