package membership

import (
	"cmp"
	"hash/fnv"
	"slices"
)

// Branch is a subtree of the query tree: a replica, and the branches to which it forwards a query.
type Branch struct {
	Member   Member
	Branches []Branch `cbor:",omitempty"`
}

// Members returns all replicas of the branch.
func (b *Branch) Members() []Member {
	members := []Member{b.Member}
	for i := range b.Branches {
		members = append(members, b.Branches[i].Members()...)
	}
	return members
}

// Names returns the names of all replicas of the branch.
func (b *Branch) Names() []string {
	var names []string
	for _, member := range b.Members() {
		names = append(names, member.Name)
	}
	return names
}

// Grow builds a query tree in which each replica forwards to at most fanout others. Relays are nearest to
// the root. The key rotates the order of the relays and that of the other replicas, so that different
// replicas merge the answers for different pods.
func Grow(members []Member, fanout int, key []byte) []Branch {
	h := fnv.New64a()
	h.Write(key)
	members = slices.Clone(members)
	slices.SortFunc(members, func(a, b Member) int {
		if a.Relay != b.Relay {
			if a.Relay {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Name, b.Name)
	})
	relays := slices.IndexFunc(members, func(m Member) bool { return !m.Relay })
	if relays >= 0 && relays < len(members) {
		rotate(members[relays:], int(h.Sum64()%uint64(len(members)-relays)))
	}
	if relays > 0 {
		rotate(members[:relays], int(h.Sum64()%uint64(relays)))
	}
	return split(members, fanout)
}

// split divides members into at most fanout branches of about the same size. The first members become the
// roots of the branches.
func split(members []Member, fanout int) []Branch {
	var branches []Branch
	heads := min(fanout, len(members))
	rest := members[heads:]
	for i := range heads {
		size := len(rest) / (heads - i)
		branches = append(branches, Branch{Member: members[i], Branches: split(rest[:size], fanout)})
		rest = rest[size:]
	}
	return branches
}

// rotate moves the first count members to the end.
func rotate(members []Member, count int) {
	slices.Reverse(members[:count])
	slices.Reverse(members[count:])
	slices.Reverse(members)
}
