package replicasim

import (
	"time"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
)

// replica is a simulated replica.
type replica struct {
	sim    *simulation
	member membership.Member
	cores  *cores
	nic    networkInterface
	// straggler is true if the replica delays some queries.
	straggler bool
	// cpuTime is the CPU time that the replica has used.
	cpuTime time.Duration
	// reservationsSent is the number of reservations that the leader has sent to the replica.
	// reservationsExecuted is the number of these that the replica has executed.
	reservationsSent, reservationsExecuted int
	waitingQueries                         []waitingQuery
	links                                  map[*replica]*link
}

// waitingQuery is a query that the replica answers after it has executed a number of reservations.
type waitingQuery struct {
	reservations int
	answer       func()
}

// work occupies a core for the CPU time, and then calls a function.
func (r *replica) work(cost time.Duration, then func()) {
	r.cpuTime += cost
	r.cores.run(cost, then)
}

// send encodes a message and sends it. The receiver decodes it, and then a function is called.
func (r *replica) send(to *replica, size int, then func()) {
	c := &r.sim.Costs
	r.work(c.Message+perByte(size, c.EncodeNanosPerByte+c.TransportNanosPerByte), func() {
		r.sim.network.send(&r.nic, &to.nic, size, func() {
			to.work(c.Message+perByte(size, c.DecodeNanosPerByte+c.TransportNanosPerByte), then)
		})
	})
}

func perByte(size int, nanos float64) time.Duration { return time.Duration(float64(size) * nanos) }

// afterReservations answers a query as soon as the replica has executed this number of reservations.
func (r *replica) afterReservations(reservations int, answer func()) {
	if r.reservationsExecuted >= reservations {
		answer()
		return
	}
	r.waitingQueries = append(r.waitingQueries, waitingQuery{reservations, answer})
}

// executeReservation counts a reservation, and answers the queries that waited for it.
func (r *replica) executeReservation() {
	r.reservationsExecuted++
	kept := r.waitingQueries[:0]
	for _, q := range r.waitingQueries {
		if r.reservationsExecuted >= q.reservations {
			r.sim.clock.after(0, q.answer)
		} else {
			kept = append(kept, q)
		}
	}
	r.waitingQueries = kept
}

// link sends messages to another replica in batches, as [wire.Link] does: messages that are added
// while a batch is being sent go into the next batch.
type link struct {
	from, to *replica
	pending  []message
	sending  bool
}

// message is a message on a link. received is called when it arrives.
type message struct {
	size     int
	received func()
}

// sendOnLink sends a message of this size on the link to another replica. call is called when the
// message arrives.
func (r *replica) sendOnLink(to *replica, size int, call func()) {
	if to == r {
		// A replica does not use the network for itself.
		r.sim.clock.after(0, call)
		return
	}
	l := r.links[to]
	if l == nil {
		l = &link{from: r, to: to}
		r.links[to] = l
	}
	l.pending = append(l.pending, message{size, call})
	l.flush()
}

// flush sends the pending messages as one batch, unless a batch is being sent.
func (l *link) flush() {
	if l.sending || len(l.pending) == 0 {
		return
	}
	l.sending = true
	batch, size := l.pending, 0
	l.pending = nil
	for _, m := range batch {
		size += m.size
	}
	c := &l.from.sim.Costs
	l.from.work(c.Message+perByte(size, c.TransportNanosPerByte), func() {
		l.sending = false
		l.from.sim.network.send(&l.from.nic, &l.to.nic, size, func() {
			l.to.work(c.Message+perByte(size, c.TransportNanosPerByte), func() {
				for _, m := range batch {
					m.received()
				}
			})
		})
		l.flush()
	})
}
