package index

import (
	"cmp"
	"encoding/binary"
	"math/rand/v2"
	"slices"
)

// Fold merges summaries of several indexes into the summary that one index with all nodes would
// return. Of each group, it keeps only the best nodes as offers; their number is limited by the
// parameter offers. All summaries must use the same numbers for topology values and image sets.
func Fold(parts []Summary, offers int) Summary {
	if len(parts) == 1 {
		return parts[0]
	}
	var merged Summary
	numbers := map[string]int{}
	for i := range parts {
		part := &parts[i]
		merged.Nodes += part.Nodes
		for len(merged.Counters) < len(part.Counters) {
			merged.Counters = append(merged.Counters, CounterSummary{})
		}
		for j := range part.Groups {
			g := &part.Groups[j]
			key := string(g.appendKey(nil))
			number, ok := numbers[key]
			if !ok {
				numbers[key] = len(merged.Groups)
				merged.Groups = append(merged.Groups, *g)
				continue
			}
			merged.Groups[number] = foldGroups(&merged.Groups[number], g)
		}
	}
	for i := range merged.Counters {
		merged.Counters[i] = foldCounters(parts, i)
	}
	for i := range merged.Groups {
		merged.Groups[i].trim(offers)
	}
	return merged
}

// appendKey appends the key that identifies the group.
func (g *GroupSummary) appendKey(key []byte) []byte {
	return appendGroup(key, g.Raw, g.ImageSet, &g.Topology, g.Host, g.Extra)
}

// foldGroups merges two summaries of one group.
func foldGroups(a, b *GroupSummary) GroupSummary {
	both := *a
	both.Count += b.Count
	switch restA, restB := a.rest(), b.rest(); {
	case restA > 0 && restB > 0:
		both.Floor = max(a.Floor, b.Floor)
	case restB > 0:
		both.Floor = b.Floor
	}
	tiers := append(slices.Clone(a.Tiers), b.Tiers...)
	slices.SortStableFunc(tiers, func(a, b Tier) int { return cmp.Compare(b.Static, a.Static) })
	both.Tiers = tiers[:0]
	for _, tier := range tiers {
		if last := len(both.Tiers) - 1; last >= 0 && both.Tiers[last].Static == tier.Static {
			same := &both.Tiers[last]
			same.Count += tier.Count
			same.Offers = append(slices.Clip(same.Offers), tier.Offers...)
		} else {
			both.Tiers = append(both.Tiers, tier)
		}
	}
	return both
}

// rest returns the number of nodes outside all tiers.
func (g *GroupSummary) rest() int {
	rest := g.Count
	for i := range g.Tiers {
		rest -= g.Tiers[i].Count
	}
	return rest
}

// trim keeps the given number of offers and drops the others. It keeps the offers of the best tiers. In
// the last of these tiers the choice is random, so that no index is preferred.
func (g *GroupSummary) trim(offers int) {
	for i := range g.Tiers {
		tier := &g.Tiers[i]
		if len(tier.Offers) > offers {
			rand.Shuffle(len(tier.Offers), func(a, b int) { tier.Offers[a], tier.Offers[b] = tier.Offers[b], tier.Offers[a] })
			tier.Offers = tier.Offers[:offers]
		}
		if offers -= len(tier.Offers); offers == 0 && i+1 < len(g.Tiers) {
			if g.rest() == 0 || g.Floor < tier.Static {
				g.Floor = tier.Static
			}
			g.Tiers = g.Tiers[:i+1]
			return
		}
	}
}

// foldCounters merges counter i of all summaries.
func foldCounters(parts []Summary, i int) CounterSummary {
	var all CounterSummary
	values, hosts := map[int32]ValueCount{}, map[int64]int{}
	for p := range parts {
		if i >= len(parts[p].Counters) {
			continue
		}
		c := &parts[p].Counters[i]
		all.Total += c.Total
		all.Hosts += c.Hosts
		for _, v := range c.Values {
			sum := values[v.Value]
			values[v.Value] = ValueCount{Value: v.Value, Count: sum.Count + v.Count, Nodes: sum.Nodes + v.Nodes}
		}
		for _, h := range c.Histogram {
			hosts[h.Count] += h.Nodes
		}
	}
	for _, v := range values {
		all.Values = append(all.Values, v)
	}
	for count, nodes := range hosts {
		all.Histogram = append(all.Histogram, HostCount{Count: count, Nodes: nodes})
	}
	return all
}

// Renumber replaces the numbers of values and image sets, so that summaries of several indexes
// can be merged by [Fold].
func (s *Summary) Renumber(value, imageSet func(int32) int32) {
	for i := range s.Groups {
		g := &s.Groups[i]
		g.ImageSet = imageSet(g.ImageSet)
		values := make([]int32, len(g.Topology.Values))
		for j, v := range g.Topology.Values {
			values[j] = value(v)
		}
		g.Topology.Values = values
	}
	for i := range s.Counters {
		for j := range s.Counters[i].Values {
			v := &s.Counters[i].Values[j]
			v.Value = value(v.Value)
		}
	}
}

// appendGroup appends the key of a group with the given properties.
func appendGroup(key []byte, raw []int64, imageSet int32, topology *Topology, host, extra []int64) []byte {
	for _, value := range raw {
		key = binary.AppendVarint(key, value)
	}
	key = binary.AppendVarint(key, int64(imageSet))
	for _, value := range topology.Values {
		key = binary.AppendVarint(key, int64(value))
	}
	key = binary.AppendUvarint(key, topology.Eligible)
	if topology.Host {
		key = append(key, 1)
	} else {
		key = append(key, 0)
	}
	for _, counts := range [2][]int64{host, extra} {
		key = binary.AppendUvarint(key, uint64(len(counts)))
		for _, count := range counts {
			key = binary.AppendVarint(key, count)
		}
	}
	return key
}
