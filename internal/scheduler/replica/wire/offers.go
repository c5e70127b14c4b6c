package wire

import "github.com/k8s-1m/k8s-1m/internal/scheduler/index"

// How many nodes of each group a leader asks for, and for how many pods more what becomes
// of each. A run of pods is placed by one answer, so much in it saves questions; but it
// costs every replica, and all of those between, and where pods come one by one, or
// classes take turns, most is never looked at.
const (
	LeastOffers, MostOffers = 8, 128
	firstOffers             = 16
	LeastSteps, MostSteps   = 4, 128
	// Where many steps are of use, the same few nodes are chosen time and again.
	mostOfBoth = 1024
)

// Wanted are offers, and steps of each, that a leader asks for.
type Wanted struct{ Offers, Steps int }

// Next is what to ask for, after so much of what was asked for was used. The first is asked
// for after nothing.
func (w Wanted) Next(used index.Used) Wanted {
	if w.Offers == 0 {
		return Wanted{firstOffers, LeastSteps}
	}
	steps := w.nextSteps(used)
	return Wanted{min(w.nextOffers(used.Offers), mostOfBoth/steps), steps}
}

func (w Wanted) nextOffers(used int) int {
	switch {
	case used >= w.Offers/2:
		return min(4*w.Offers, MostOffers)
	case used < w.Offers/8:
		return max(w.Offers/2, LeastOffers)
	}
	return w.Offers
}

func (w Wanted) nextSteps(used index.Used) int {
	switch {
	case used.Short:
		return min(4*w.Steps, MostSteps)
	case used.Steps < w.Steps/8:
		return max(w.Steps/2, LeastSteps)
	}
	return w.Steps
}
