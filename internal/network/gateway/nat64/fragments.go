package nat64

import "time"

// fragmentKey identifies the fragments of one packet.
type fragmentKey struct {
	source, destination [16]byte // those of IPv4 are embedded
	id                  uint32
	protocol            byte
}

// fragmented is a packet whose first fragment has been seen.
type fragmented struct {
	key     fragmentKey
	session *session
	node    *Node
	id      uint16 // of the IPv4 packet
	expires time.Duration
}

// fragmentTable remembers the sessions of fragmented packets. Entries have equal lifetimes, so that
// their order is that of their ends.
type fragmentTable struct {
	entries map[fragmentKey]*fragmented
	order   []*fragmented
}

func (f *fragmentTable) find(k fragmentKey) *fragmented {
	e := f.entries[k]
	if e == nil || e.session.ended {
		return nil
	}
	return e
}

// track remembers the session of a first fragment.
func (t *Translator) track(k fragmentKey, s *session, now time.Duration) (*fragmented, Reason) {
	f := &t.fragments
	if e := f.entries[k]; e != nil && e.session == s {
		return e, NotDropped // a repetition
	}
	n := s.binding.node
	if len(f.order) >= t.config.MaxFragmented || n.tracked >= max(1, t.config.MaxFragmented/16) {
		f.expire(t, now)
		if len(f.order) >= t.config.MaxFragmented || n.tracked >= max(1, t.config.MaxFragmented/16) {
			return nil, FragmentLimit
		}
	}
	e := &fragmented{key: k, session: s, node: n, id: t.nextID(), expires: now + t.config.Timeouts.Fragment}
	f.entries[k] = e
	f.order = append(f.order, e)
	n.tracked++
	return e, NotDropped
}

func (f *fragmentTable) expire(t *Translator, now time.Duration) {
	done := 0
	for done < len(f.order) && f.order[done].expires <= now {
		e := f.order[done]
		if f.entries[e.key] == e {
			delete(f.entries, e.key)
		}
		e.node.tracked--
		f.order[done] = nil
		done++
	}
	f.order = f.order[done:]
	if len(f.order) == 0 {
		f.order = nil // lets the array go
	}
}

func (d *datagram) fragmentKey6() fragmentKey {
	return fragmentKey{source: d.source6, destination: d.destination6, id: d.fragment.id, protocol: d.protocol}
}

func (d *datagram) fragmentKey4() fragmentKey {
	k := fragmentKey{id: d.fragment.id, protocol: d.protocol}
	copy(k.source[12:], d.source4[:])
	copy(k.destination[12:], d.destination4[:])
	return k
}
