package shard

import "testing"

// TestOffersFollowRuns: they soon suffice for a burst, and shrink when pods come singly.
func TestOffersFollowRuns(t *testing.T) {
	offers := NextOffers(0, 0)
	for range 2 {
		offers = NextOffers(offers, offers)
	}
	if offers != MostOffers {
		t.Errorf("%d offers in a burst", offers)
	}
	for range 10 {
		offers = NextOffers(offers, 1)
	}
	if offers != LeastOffers {
		t.Errorf("%d offers for one pod at a time", offers)
	}
	if steady := NextOffers(64, 20); steady != 64 {
		t.Errorf("%d offers after 20 of 64 were used", steady)
	}
}
