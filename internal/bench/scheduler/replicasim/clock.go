package replicasim

import (
	"container/heap"
	"math/rand/v2"
	"time"
)

// clock is the simulated clock. It calls functions in the order of their simulated times.
type clock struct {
	now    time.Duration
	events events
	number int
	rand   *rand.Rand
}

type event struct {
	at time.Duration
	// number orders events that have the same time by their creation.
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

// after calls a function when this simulated time has passed.
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

// cores execute work in the order of arrival. Each core executes one piece of work at a time.
type cores struct {
	clock *clock
	// freeAt is the time at which each core has executed all its work.
	freeAt []time.Duration
}

func newCores(c *clock, count int) *cores {
	return &cores{clock: c, freeAt: make([]time.Duration, count)}
}

// run executes work on the core that is free first, and then calls a function.
func (c *cores) run(cost time.Duration, then func()) {
	first := 0
	for i := range c.freeAt {
		if c.freeAt[i] < c.freeAt[first] {
			first = i
		}
	}
	c.freeAt[first] = max(c.freeAt[first], c.clock.now) + cost
	c.clock.after(c.freeAt[first]-c.clock.now, then)
}

// network delivers messages between any two replicas.
type network struct {
	clock *clock
	Network
}

// networkInterface is the network interface of a replica.
type networkInterface struct {
	// outFree is the time at which the interface has sent all earlier messages. inFree is the time at
	// which it has received all earlier messages.
	outFree, inFree time.Duration
	bytes           int64 // sent and received
}

// send delivers a message and then calls a function. The message waits until the sender's interface has
// sent earlier messages, takes the latency of the network, and waits until the receiver's interface has
// received earlier messages.
func (n *network) send(from, to *networkInterface, size int, then func()) {
	var transmission time.Duration
	if n.BytesPerSecond > 0 {
		transmission = time.Duration(float64(size) / n.BytesPerSecond * float64(time.Second))
	}
	from.bytes += int64(size)
	to.bytes += int64(size)
	from.outFree = max(from.outFree, n.clock.now) + transmission
	delay := from.outFree - n.clock.now + n.Latency
	if n.Jitter > 0 {
		delay += time.Duration(n.clock.rand.ExpFloat64() * float64(n.Jitter))
	}
	n.clock.after(delay, func() {
		to.inFree = max(n.clock.now, to.inFree+transmission)
		n.clock.after(to.inFree-n.clock.now, then)
	})
}
