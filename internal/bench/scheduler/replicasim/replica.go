package replicasim

import (
	"time"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
)

// replica is one of the simulated ones. The first of all leads.
type replica struct {
	w      *world
	member membership.Member
	cores  *cores
	port   port
	// slow says that it is a straggler.
	slow bool
	// used is its CPU time.
	used time.Duration
	// told and taken are the reservations that the leader has told it of, and that it
	// has carried out; waiting are questions that may not be answered before.
	told, taken int
	waiting     []waiting
	links       map[*replica]*link
}

type waiting struct {
	told int
	call func()
}

// work takes CPU time.
func (r *replica) work(cost time.Duration, then func()) {
	r.used += cost
	r.cores.run(cost, then)
}

// send encodes a message, sends it, and has it decoded at the other end.
func (r *replica) send(to *replica, size int, then func()) {
	c := &r.w.Costs
	r.work(c.Message+perByte(size, c.EncodeNanosPerByte+c.TransportNanosPerByte), func() {
		r.w.network.send(&r.port, &to.port, size, func() {
			to.work(c.Message+perByte(size, c.DecodeNanosPerByte+c.TransportNanosPerByte), then)
		})
	})
}

func perByte(size int, nanos float64) time.Duration { return time.Duration(float64(size) * nanos) }

// when calls a function once so many reservations were carried out.
func (r *replica) when(told int, call func()) {
	if r.taken >= told {
		call()
		return
	}
	r.waiting = append(r.waiting, waiting{told, call})
}

func (r *replica) take() {
	r.taken++
	kept := r.waiting[:0]
	for _, w := range r.waiting {
		if r.taken >= w.told {
			r.w.clock.after(0, w.call)
		} else {
			kept = append(kept, w)
		}
	}
	r.waiting = kept
}

// link tells another replica things, as [shard.Link] does: what comes while a batch is
// being sent goes with the next.
type link struct {
	from, to *replica
	pending  []told
	sending  bool
}

type told struct {
	size int
	call func()
}

// tell lets another replica call a function when a message of a size has come to it.
func (r *replica) tell(to *replica, size int, call func()) {
	if to == r {
		// A replica tells itself without a connection.
		r.w.clock.after(0, call)
		return
	}
	l := r.links[to]
	if l == nil {
		l = &link{from: r, to: to}
		r.links[to] = l
	}
	l.pending = append(l.pending, told{size, call})
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
