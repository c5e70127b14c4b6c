package nat64

import "time"

// wheelSlots is the horizon of the timer wheel in seconds. Sessions that end later are looked at
// again when the horizon is reached.
const wheelSlots = 512

// wheel finds sessions that have been idle for too long. A packet only changes session.expires; the
// wheel compares it when the slot of the session comes up.
type wheel struct {
	slots [wheelSlots][]*session
	tick  int64 // the last one that was looked at
}

func tickOf(now time.Duration) int64 { return int64(now / time.Second) }

// schedule looks at a session again after it expires, or at the horizon if that is earlier.
func (w *wheel) schedule(s *session) {
	due := min(tickOf(s.expires)+1, w.tick+wheelSlots-1)
	s.due = max(due, w.tick+1)
	slot := s.due % wheelSlots
	w.slots[slot] = append(w.slots[slot], s)
}

// refresh starts the idle timer of a session again.
func (t *Translator) refresh(s *session, timeout, now time.Duration) {
	s.expires = now + timeout
	if s.due == 0 || tickOf(s.expires)+1 < s.due {
		t.wheel.schedule(s)
	}
}

// Advance ends the sessions that have been idle until now. Call it about once a second.
func (t *Translator) Advance(now time.Duration) {
	w := &t.wheel
	end := tickOf(now)
	w.tick = max(w.tick, end-wheelSlots)
	for w.tick < end {
		w.tick++
		slot := w.tick % wheelSlots
		due := w.slots[slot]
		w.slots[slot] = nil
		for _, s := range due {
			t.look(s, now)
		}
	}
	t.fragments.expire(t, now)
}

// look ends a session that is due. An entry of a session that was scheduled again is skipped.
func (t *Translator) look(s *session, now time.Duration) {
	switch {
	case s.ended || s.due > t.wheel.tick:
	case s.expires <= now:
		t.endSession(s)
	default:
		t.wheel.schedule(s)
	}
}
