package registry

import (
	"net/netip"
	"slices"
)

// owners are the prefixes of all peers, sorted by their first address. No two of them overlap, so only the neighbours of a prefix in this
// order can overlap with it.
type owners []owner

type owner struct {
	prefix netip.Prefix
	name   string
}

// search returns where a prefix is, or would be.
func (o owners) search(prefix netip.Prefix) (int, bool) {
	return slices.BinarySearchFunc(o, prefix.Addr(), func(entry owner, address netip.Addr) int { return entry.prefix.Addr().Compare(address) })
}

// overlapping returns an entry of another peer that overlaps with one of the prefixes, that prefix, and whether there is one.
func (o owners) overlapping(name string, prefixes []netip.Prefix) (owner, netip.Prefix, bool) {
	for _, own := range prefixes {
		// From the last one that begins before the prefix, to those that begin in it. Entries of the peer itself are passed over.
		at, _ := o.search(own)
		for _, entry := range o[max(0, at-1):] {
			if entry.prefix.Addr().Compare(own.Addr()) > 0 && !own.Contains(entry.prefix.Addr()) {
				break
			}
			if entry.name != name && entry.prefix.Overlaps(own) {
				return entry, own, true
			}
		}
	}
	return owner{}, netip.Prefix{}, false
}

// add adds the prefixes of a peer, which do not overlap with each other or with those of other peers.
func (o *owners) add(name string, prefixes []netip.Prefix) {
	for _, prefix := range prefixes {
		at, _ := o.search(prefix)
		*o = slices.Insert(*o, at, owner{prefix, name})
	}
}

// remove removes the prefixes of a peer.
func (o *owners) remove(name string, prefixes []netip.Prefix) {
	for _, prefix := range prefixes {
		if at, found := o.search(prefix); found && (*o)[at] == (owner{prefix, name}) {
			*o = slices.Delete(*o, at, at+1)
		}
	}
}

// outermost returns the prefixes, sorted, without those that are in another one, and without bits behind their length.
func outermost(prefixes []netip.Prefix) (all []netip.Prefix) {
	sorted := make([]netip.Prefix, len(prefixes))
	for i, p := range prefixes {
		sorted[i] = p.Masked()
	}
	slices.SortFunc(sorted, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	for _, p := range sorted {
		if len(all) == 0 || !all[len(all)-1].Overlaps(p) {
			all = append(all, p)
		}
	}
	return all
}
