package index

import (
	"errors"
	"fmt"
)

var errMalformed = errors.New("malformed summary")

// Validate returns an error if a number in a summary is out of range. values, imageSets and names are the
// numbers of values, image sets and node names to which the summary may refer. A summary from another
// process must be validated before it is used.
func (s *Summary) Validate(values, imageSets, names int) error {
	invalid := s.Nodes < 0
	s.Renumber(
		func(value int32) int32 { invalid = invalid || value < 0 || int(value) >= values; return value },
		func(imageSet int32) int32 {
			invalid = invalid || imageSet < 0 || int(imageSet) >= imageSets
			return imageSet
		},
	)
	for i := range s.Groups {
		g := &s.Groups[i]
		counted := 0
		for _, tier := range g.Tiers {
			invalid = invalid || tier.Count < len(tier.Offers) || tier.Count < 0 || tier.Count > g.Count-counted
			counted += tier.Count
			for _, offer := range tier.Offers {
				invalid = invalid || offer.Node < 0 || int(offer.Node) >= names
			}
		}
		invalid = invalid || counted > g.Count || counted < 0
	}
	for i := range s.Counters {
		for _, host := range s.Counters[i].Histogram {
			invalid = invalid || host.Nodes < 0
		}
	}
	if invalid || len(s.Counters) > MaxCounters {
		return errMalformed
	}
	return nil
}

// CheckSpec returns an error if the summary cannot belong to a class with this Spec.
func (s *Summary) CheckSpec(spec *Spec) error {
	counters := len(spec.Counters)
	invalid := len(s.Counters) > counters
	for i := range s.Groups {
		g := &s.Groups[i]
		invalid = invalid || len(g.Raw) != len(spec.Normalized) || len(g.Topology.Values) != len(spec.Keys)
		invalid = invalid || len(g.Host) != 0 && len(g.Host) != counters || len(g.Extra) != 0 && len(g.Extra) != counters
	}
	if invalid {
		return fmt.Errorf("%w: it belongs to another pod class", errMalformed)
	}
	return nil
}
