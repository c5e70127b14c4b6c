package index

import (
	"errors"
	"fmt"
)

var errMalformed = errors.New("malformed summary")

// Validate says what is wrong with a summary from elsewhere: its numbers have to stand for
// so many values, profiles and offered nodes.
func (s *Summary) Validate(values, profiles, names int) error {
	wrong := s.Nodes < 0
	s.Renumber(
		func(value int32) int32 { wrong = wrong || value < 0 || int(value) >= values; return value },
		func(profile int32) int32 { wrong = wrong || profile < 0 || int(profile) >= profiles; return profile },
	)
	for i := range s.Groups {
		g := &s.Groups[i]
		counted := 0
		for _, tier := range g.Tiers {
			wrong = wrong || tier.Count < len(tier.Offers) || tier.Count < 0 || tier.Count > g.Count-counted
			counted += tier.Count
			for _, offer := range tier.Offers {
				wrong = wrong || offer.Slot < 0 || int(offer.Slot) >= names
			}
		}
		wrong = wrong || counted > g.Count || counted < 0
	}
	for i := range s.Counters {
		for _, host := range s.Counters[i].Histogram {
			wrong = wrong || host.Nodes < 0
		}
	}
	if wrong || len(s.Counters) > MaxCounters {
		return errMalformed
	}
	return nil
}

// Suits says why a summary is not one of a class, if it is not.
func (s *Summary) Suits(spec *Spec) error {
	counters := len(spec.Counters)
	wrong := len(s.Counters) > counters
	for i := range s.Groups {
		g := &s.Groups[i]
		wrong = wrong || len(g.Raw) != len(spec.Normalized) || len(g.Facts.Values) != len(spec.Keys)
		wrong = wrong || len(g.Host) != 0 && len(g.Host) != counters || len(g.Extra) != 0 && len(g.Extra) != counters
	}
	if wrong {
		return fmt.Errorf("%w: it is about pods of another class", errMalformed)
	}
	return nil
}
