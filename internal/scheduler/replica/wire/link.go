package wire

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc"
	"k8s.io/klog/v2"
)

// Link tells one other replica what it has to know, in order. If the connection breaks,
// or the other one does not keep up, everything is told anew.
type Link struct {
	to   Member
	from string
	dial *Dialer
	// begin is called for each connection, to tell everything.
	begin func(context.Context, *Link)
	// loop is who is told without a connection, if this is a link to itself.
	loop Handler

	mu      sync.Mutex
	pending *Batch
	bytes   int
	// due is when it is to be sent, zero if nothing is pending; sent is when the last was.
	due, sent time.Time
	// behind says that nothing is pending, as everything will be told anew: there is no
	// connection, or what was pending was dropped.
	behind bool
	// connection is the number of the last, and reservations were told by it.
	connection   int64
	reservations uint64
	// down is since when there is no connection; zero if there is one.
	down time.Time
	more chan struct{}
	room *sync.Cond
}

const (
	// Bytes that wait to be sent; with more, the other replica is too far behind.
	maxPending = 64 << 20
	// Bytes that wait when everything is told, which has time.
	mostAtOnce = 2 << 20
	retryAfter = 100 * time.Millisecond
	// Batches are so far apart, and what is told later is told within so long: a message
	// costs more than what is in it, as both sides wake up for it. With more bytes none waits.
	pace, later  = 50 * time.Millisecond, 250 * time.Millisecond
	enoughToSend = 64 << 10
	// Whoever listens says so each time that the first has passed, and is taken for gone
	// when the second has. What gRPC has for this does not look more often than each ten
	// seconds.
	hearEvery, silentFor = time.Second, 3 * time.Second
)

var errBehind = errors.New("the other replica does not keep up")

// NewLink is a link from a replica to another.
func NewLink(from string, to Member, dial *Dialer, begin func(context.Context, *Link)) *Link {
	l := &Link{to: to, from: from, dial: dial, begin: begin, pending: &Batch{}, behind: true, down: time.Now(), more: make(chan struct{}, 1)}
	l.room = sync.NewCond(&l.mu)
	return l
}

// To is who is told.
func (l *Link) To() Member { return l.to }

// NewLoop is a link of a replica to itself.
func NewLoop(self Member, handler Handler, begin func(context.Context, *Link)) *Link {
	l := NewLink(self.Name, self, nil, begin)
	l.loop = handler
	return l
}

// Tell adds to what is told next: at once, unless something was told a moment ago.
func (l *Link) Tell(add func(*Batch)) { l.tell(add, false) }

// TellLater adds to what is told next, and has time.
func (l *Link) TellLater(add func(*Batch)) { l.tell(add, true) }

func (l *Link) tell(add func(*Batch), hasTime bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.behind {
		return
	}
	before := *l.pending
	add(l.pending)
	l.bytes += l.pending.grown(&before)
	l.reservations += uint64(len(l.pending.Reservations) - len(before.Reservations))
	if l.bytes > maxPending {
		l.drop()
	}
	l.hasten(l.dueFor(time.Now(), hasTime))
}

// dueFor is when what was just told is to be sent; the lock is held.
func (l *Link) dueFor(now time.Time, hasTime bool) time.Time {
	switch {
	case l.loop != nil || l.bytes > enoughToSend:
		return now
	case hasTime:
		return Beat(now, later)
	case now.Sub(l.sent) < pace:
		return Beat(now, pace)
	}
	return now
}

// Flush sends what is pending at once.
func (l *Link) Flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.due.IsZero() {
		l.hasten(time.Now())
	}
}

// hasten sends what is pending no later than that; the lock is held.
func (l *Link) hasten(due time.Time) {
	if !l.due.IsZero() && !due.Before(l.due) {
		return
	}
	l.due = due
	select {
	case l.more <- struct{}{}:
	default:
	}
}

// drop gives up what is pending; the lock is held.
func (l *Link) drop() {
	l.behind, l.pending, l.bytes, l.due = true, &Batch{}, 0, time.Time{}
	l.room.Broadcast()
}

// wait is how long what is pending has to wait.
func (l *Link) wait() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Until(l.due) // Nothing is pending: the past, and nothing is sent.
}

// Connection is a number of the connection that there is, or was last.
func (l *Link) Connection() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.connection
}

// Down is since when there is no connection; zero if there is one.
func (l *Link) Down() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.down
}

// Reservations are how many were told by a connection, and its number; 0 if there is none.
func (l *Link) Reservations() (told uint64, connection int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.behind {
		return 0, 0
	}
	return l.reservations, l.connection
}

// Room waits until little is pending; false if the connection has ended. Who has much
// to tell waits for it each time.
func (l *Link) Room(ctx context.Context) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.bytes > mostAtOnce && !l.behind && ctx.Err() == nil {
		l.room.Wait()
	}
	return !l.behind && ctx.Err() == nil
}

// take is what is pending; nil if nothing is.
func (l *Link) take() (*Batch, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.behind {
		return nil, errBehind
	}
	if l.due.IsZero() {
		return nil, nil
	}
	b := l.pending
	l.pending, l.bytes, l.due, l.sent = &Batch{}, 0, time.Time{}, time.Now()
	l.room.Broadcast()
	return b, nil
}

// Run tells until the context ends.
func (l *Link) Run(ctx context.Context) {
	logger := klog.FromContext(ctx)
	defer context.AfterFunc(ctx, l.wake)()
	for ctx.Err() == nil {
		err := l.connect(ctx)
		if ctx.Err() == nil {
			logger.V(2).Info("Connection to another replica has ended", "replica", l.to.Name, "err", err)
			linkResets.WithLabelValues(l.to.Name).Inc()
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryAfter):
		}
	}
}

func (l *Link) connect(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, l.wake)()
	send, ended, err := l.open(ctx, cancel)
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.pending, l.bytes, l.behind, l.due, l.sent = &Batch{}, 0, false, time.Time{}, time.Time{}
	l.connection, l.reservations, l.down = l.connection+1, 0, time.Time{}
	l.mu.Unlock()
	begun := make(chan struct{})
	go func() {
		defer close(begun)
		l.begin(ctx, l)
	}()
	// The next connection begins after this one has ended altogether.
	defer func() {
		cancel()
		l.mu.Lock()
		l.drop()
		l.down = time.Now()
		l.mu.Unlock()
		<-begun
	}()
	due := time.NewTimer(later)
	defer due.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-l.more:
			if wait := l.wait(); wait > 0 {
				due.Reset(wait)
				continue
			}
		case <-due.C:
		}
		b, err := l.take()
		if err == nil && b != nil {
			err = send(b)
		}
		if err != nil {
			return err
		}
	}
}

// open begins a connection, and returns what sends, and what says that it has ended.
func (l *Link) open(ctx context.Context, cancel func()) (func(*Batch) error, <-chan error, error) {
	ended := make(chan error, 1)
	if l.loop != nil {
		l.loop.Connected(l.from)
		return func(b *Batch) error { return l.loop.Receive(l.from, b) }, ended, nil
	}
	connection, err := l.dial.connections.get(l.to.Address, l.dial.certificates)
	if err != nil {
		return nil, nil, err
	}
	stream, err := connection.NewStream(ctx, &grpc.StreamDesc{StreamName: "Tell", ClientStreams: true, ServerStreams: true},
		"/"+serviceName+"/Tell", grpc.WaitForReady(true))
	if err != nil {
		return nil, nil, err
	}
	if err := stream.SendMsg(&Batch{From: l.from}); err != nil {
		return nil, nil, err
	}
	silence := time.AfterFunc(silentFor, cancel)
	go func() {
		defer silence.Stop()
		for {
			// Nothing is answered but that somebody hears, and the reason for an end.
			if err := stream.RecvMsg(&Batch{}); err != nil {
				ended <- err
				cancel()
				return
			}
			silence.Reset(silentFor)
		}
	}()
	return func(b *Batch) error { return stream.SendMsg(b) }, ended, nil
}

// wake lets those look again who wait for room.
func (l *Link) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.room.Broadcast()
}

// grown is about how many bytes a batch has more than before.
func (b *Batch) grown(before *Batch) int {
	added := Batch{
		Assignments: b.Assignments[len(before.Assignments):],
		Nodes:       b.Nodes[len(before.Nodes):], Pods: b.Pods[len(before.Pods):], Pending: b.Pending[len(before.Pending):],
		News: b.News[len(before.News):], Reservations: b.Reservations[len(before.Reservations):],
		Refreshing: b.Refreshing[len(before.Refreshing):], Refreshed: b.Refreshed[len(before.Refreshed):], Listed: b.Listed[len(before.Listed):],
		Kept: b.Kept[len(before.Kept):], Acks: b.Acks[len(before.Acks):],
	}
	return added.size()
}
