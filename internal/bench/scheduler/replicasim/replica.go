package replicasim

import (
	"time"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
)

// replica is a simulated replica. The first replica is the leader.
type replica struct {
	w      *world
	member membership.Member
	cores  *cores
	port   port
	// slow reports that the replica is a straggler.
	slow bool
	// used is the CPU time of the replica.
	used time.Duration
	// sent is the number of reservations that the leader has sent to the replica. taken is
	// the number that it has executed. waiting contains queries that must not be answered before a
	// number of reservations has been executed.
	sent, taken int
	waiting     []waiting
	links       map[*replica]*link
}

type waiting struct {
	sent int
	call func()
}

// work occupies a core for the CPU time, then calls a function.
func (r *replica) work(cost time.Duration, then func()) {
	r.used += cost
	r.cores.run(cost, then)
}

// send encodes a message, sends it, and decodes it at the receiver.
func (r *replica) send(to *replica, size int, then func()) {
	c := &r.w.Costs
	r.work(c.Message+perByte(size, c.EncodeNanosPerByte+c.TransportNanosPerByte), func() {
		r.w.network.send(&r.port, &to.port, size, func() {
			to.work(c.Message+perByte(size, c.DecodeNanosPerByte+c.TransportNanosPerByte), then)
		})
	})
}

func perByte(size int, nanos float64) time.Duration { return time.Duration(float64(size) * nanos) }

// when calls a function as soon as this number of reservations has been executed.
func (r *replica) when(sent int, call func()) {
	if r.taken >= sent {
		call()
		return
	}
	r.waiting = append(r.waiting, waiting{sent, call})
}

func (r *replica) take() {
	r.taken++
	kept := r.waiting[:0]
	for _, w := range r.waiting {
		if r.taken >= w.sent {
			r.w.clock.after(0, w.call)
		} else {
			kept = append(kept, w)
		}
	}
	r.waiting = kept
}

// link sends messages to another replica in batches, as [wire.Link] does: messages that are added
// while a batch is being sent go into the next batch.
type link struct {
	from, to *replica
	pending  []sent
	sending  bool
}

type sent struct {
	size int
	call func()
}

// tell sends a message of this size to another replica, which calls a function when it arrives.
func (r *replica) tell(to *replica, size int, call func()) {
	if to == r {
		// A replica does not use the network for itself.
		r.w.clock.after(0, call)
		return
	}
	l := r.links[to]
	if l == nil {
		l = &link{from: r, to: to}
		r.links[to] = l
	}
	l.pending = append(l.pending, sent{size, call})
	l.flush()
}

func (l *link) flush() {
	if l.sending || len(l.pending) == 0 {
		return
	}
	l.sending = true
	batch, size := l.pending, 0
	l.pending = nil
	for _, t := range batch {
		size += t.size
	}
	c := &l.from.w.Costs
	l.from.work(c.Message+perByte(size, c.TransportNanosPerByte), func() {
		l.sending = false
		l.from.w.network.send(&l.from.port, &l.to.port, size, func() {
			l.to.work(c.Message+perByte(size, c.TransportNanosPerByte), func() {
				for _, t := range batch {
					t.call()
				}
			})
		})
		l.flush()
	})
}
