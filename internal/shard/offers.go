package shard

// How many nodes of each group a leader asks for. A run of pods is placed by one answer,
// so many offers save questions; but each costs every replica, and all of those between,
// and where pods come one by one, or classes take turns, most are never looked at.
const (
	LeastOffers, MostOffers = 8, 128
	firstOffers             = 16
)

// NextOffers is how many to ask for, after so many were asked for that many pods were
// placed by; asked is 0 at first.
func NextOffers(asked, placed int) int {
	switch {
	case asked == 0:
		return firstOffers
	case placed >= asked/2:
		return min(4*asked, MostOffers)
	case placed < asked/8:
		return max(asked/2, LeastOffers)
	}
	return asked
}
