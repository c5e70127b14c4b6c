package wire

import "github.com/k8s-1m/k8s-1m/internal/scheduler/index"

// The leader uses one answer for several pods of a batch of identical pods. A larger answer is
// sufficient for more pods, so the leader sends fewer queries. But a larger answer costs CPU in every
// replica. The useful size depends on the pod class, so
// the size of each answer depends on how much of the previous answer for the class was used.
const (
	// LeastOffers and MostOffers bound the number of nodes offered from each group.
	LeastOffers, MostOffers = 8, 128
	firstOffers             = 16
	// LeastSteps and MostSteps bound the number of further pods predicted for each offer.
	LeastSteps, MostSteps = 4, 128
	// maxOffersTimesSteps bounds offers times steps. If many steps are used, the same few nodes are
	// chosen repeatedly, so fewer offers suffice.
	maxOffersTimesSteps = 1024
)

// AnswerSize is the size of answer that the leader requests for a pod class.
type AnswerSize struct {
	// Offers is the maximal number of nodes offered from each group. Steps is the maximal number of
	// predictions for each offer: whether the node still fits, and its static score, after one, two,
	// … more pods of the class were placed on it.
	Offers, Steps int
}

// Next returns the size for the next query of a class, given how much of the previous answer was used.
// For the zero value it returns the size for the first query.
func (w AnswerSize) Next(used index.Used) AnswerSize {
	if w.Offers == 0 {
		return AnswerSize{firstOffers, LeastSteps}
	}
	steps := w.nextSteps(used)
	return AnswerSize{min(w.nextOffers(used.Offers), maxOffersTimesSteps/steps), steps}
}

func (w AnswerSize) nextOffers(used int) int {
	switch {
	case used >= w.Offers/2:
		return min(4*w.Offers, MostOffers)
	case used < w.Offers/8:
		return max(w.Offers/2, LeastOffers)
	}
	return w.Offers
}

func (w AnswerSize) nextSteps(used index.Used) int {
	switch {
	case used.StepsExhausted:
		return min(4*w.Steps, MostSteps)
	case used.Steps < w.Steps/8:
		return max(w.Steps/2, LeastSteps)
	}
	return w.Steps
}
