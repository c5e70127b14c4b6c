package replicasim

import (
	"container/heap"
	"math/rand/v2"
	"time"
)

// clock calls functions in the order of their simulated times.
type clock struct {
	now    time.Duration
	events events
	number int
	rand   *rand.Rand
}

type event struct {
	at time.Duration
	// number orders events with equal times by their creation.
	number int
	call   func()
}

type events []event

func (e events) Len() int { return len(e) }

func (e events) Less(a, b int) bool {
	return e[a].at < e[b].at || e[a].at == e[b].at && e[a].number < e[b].number
}

func (e events) Swap(a, b int) { e[a], e[b] = e[b], e[a] }

// Push implements [heap.Interface].
func (e *events) Push(x any) { *e = append(*e, x.(event)) }

// Pop removes the last event.
func (e *events) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	(*e)[last] = event{}
	*e = (*e)[:last]
	return x
}

func newClock(seed uint64) *clock { return &clock{rand: rand.New(rand.NewPCG(seed, 1))} }

func (c *clock) after(wait time.Duration, call func()) {
	c.number++
	heap.Push(&c.events, event{at: c.now + wait, number: c.number, call: call})
}

// run executes events until none is left, or until stop returns true.
func (c *clock) run(stop func() bool) {
	for len(c.events) > 0 && !stop() {
		next := heap.Pop(&c.events).(event)
		c.now = next.at
		next.call()
	}
}

// cores execute work in the order of arrival; each core executes one piece of work at a time.
type cores struct {
	clock *clock
	free  []time.Duration
}

func newCores(c *clock, count int) *cores {
	return &cores{clock: c, free: make([]time.Duration, count)}
}

func (c *cores) run(cost time.Duration, then func()) {
	first := 0
	for i := range c.free {
		if c.free[i] < c.free[first] {
			first = i
		}
	}
	c.free[first] = max(c.free[first], c.clock.now) + cost
	c.clock.after(c.free[first]-c.clock.now, then)
}

// network connects any two replicas.
type network struct {
	clock *clock
	Network
}

// port is the network interface of a replica.
type port struct {
	// outFree and inFree are the times at which everything sent so far has left, and everything
	// received so far has arrived.
	outFree, inFree time.Duration
	bytes           int64
}

// send delivers a message. It leaves the sending port after earlier messages, takes the latency
// of the network, and queues at the receiving port.
func (n *network) send(from, to *port, size int, then func()) {
	var wire time.Duration
	if n.BytesPerSecond > 0 {
		wire = time.Duration(float64(size) / n.BytesPerSecond * float64(time.Second))
	}
	from.bytes += int64(size)
	to.bytes += int64(size)
	from.outFree = max(from.outFree, n.clock.now) + wire
	delay := from.outFree - n.clock.now + n.Latency
	if n.Jitter > 0 {
		delay += time.Duration(n.clock.rand.ExpFloat64() * float64(n.Jitter))
	}
	n.clock.after(delay, func() {
		to.inFree = max(n.clock.now, to.inFree+wire)
		n.clock.after(to.inFree-n.clock.now, then)
	})
}
