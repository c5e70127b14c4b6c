package wire

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc"
	"k8s.io/klog/v2"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/pacing"
)

// Link sends batches to one replica, in order. If the connection ends or the receiver is too slow, the
// link connects again and onConnect sends the whole state again. There is no other recovery. All methods
// may be called concurrently.
type Link struct {
	to   membership.Member
	from string
	dial *Dialer
	// onConnect is called for each new connection and sends the whole state.
	onConnect func(context.Context, *Link)
	// local is the receiver if this replica sends to itself, without a connection; otherwise nil.
	local Handler

	mu sync.Mutex
	// pending is the batch that is sent next. bytes is its estimated size.
	pending *Batch
	bytes   int
	// due is the time at which pending is sent; zero if nothing is pending. lastSent is the time at
	// which the previous batch was sent.
	due, lastSent time.Time
	// discarding is true if new changes are discarded, because the whole state will be sent again:
	// there is no connection, or the pending batch exceeded maxPending.
	discarding bool
	// connection is the number of connections so far. reservations is the number of reservations
	// that were sent on the current one.
	connection   int64
	reservations uint64
	// down is the time at which the connection ended; zero while there is one.
	down time.Time
	// wake makes sendBatches check due. room is signaled when the pending batch becomes smaller or
	// the connection ends.
	wake chan struct{}
	room *sync.Cond
}

const (
	// maxPending is the maximal size in bytes of the pending batch. If it is exceeded, the
	// receiver is too slow: the link ends the connection and starts again.
	maxPending = 64 << 20
	// fullSendPending is the size in bytes of the pending batch above which WaitForRoom blocks.
	fullSendPending = 2 << 20
	reconnectDelay  = 100 * time.Millisecond
	// Batches are sent at the beats of pacing.Interval. Batches with only changes that are not
	// urgent are sent at the beats of lazyInterval. Each message wakes up the processes of both
	// sides, which costs more CPU than its content. A batch of more than urgentBytes is sent
	// immediately.
	lazyInterval = 250 * time.Millisecond
	urgentBytes  = 64 << 10
	// The receiver sends a heartbeat every heartbeatInterval. If none arrives for heartbeatTimeout,
	// the sender ends the connection. gRPC's keepalive allows no interval below 10 s.
	heartbeatInterval, heartbeatTimeout = time.Second, 3 * time.Second
)

var errTooSlow = errors.New("the other replica receives too slowly")

// NewLink returns a link from the replica named from to another replica. The link calls onConnect for
// each new connection, to send the whole state.
func NewLink(from string, to membership.Member, dial *Dialer, onConnect func(context.Context, *Link)) *Link {
	l := &Link{to: to, from: from, dial: dial, onConnect: onConnect, pending: &Batch{}, discarding: true, down: time.Now(), wake: make(chan struct{}, 1)}
	l.room = sync.NewCond(&l.mu)
	return l
}

// NewLoop returns a link of a replica to itself, which calls the handler directly.
func NewLoop(self membership.Member, handler Handler, onConnect func(context.Context, *Link)) *Link {
	l := NewLink(self.Name, self, nil, onConnect)
	l.local = handler
	return l
}

// To returns the receiver.
func (l *Link) To() membership.Member { return l.to }

// Send adds changes to the next batch. The batch is sent immediately, or at the next beat if the previous
// batch was sent less than pacing.Interval ago. Without a connection the changes are discarded.
func (l *Link) Send(add func(*Batch)) { l.enqueue(add, false) }

// SendLater adds changes to the next batch. The batch may be delayed by up to lazyInterval.
func (l *Link) SendLater(add func(*Batch)) { l.enqueue(add, true) }

// SendOn is [Link.Send] for changes that belong to the connection with the given number. Without this connection, they are
// discarded.
func (l *Link) SendOn(connection int64, add func(*Batch)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.connection == connection {
		l.enqueueLocked(add, false)
	}
}

// enqueue adds changes to the pending batch. lazy means that they are not urgent.
func (l *Link) enqueue(add func(*Batch), lazy bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.enqueueLocked(add, lazy)
}

// enqueueLocked is enqueue for a caller that holds the lock.
func (l *Link) enqueueLocked(add func(*Batch), lazy bool) {
	if l.discarding {
		return
	}
	before := *l.pending
	add(l.pending)
	l.bytes += l.pending.grownBy(&before)
	l.reservations += uint64(len(l.pending.Reservations) - len(before.Reservations))
	if l.bytes > maxPending {
		l.discardPending()
	}
	l.schedule(l.dueFor(time.Now(), lazy))
}

// dueFor returns the time by which a change that was just added must be sent. The caller holds the lock.
func (l *Link) dueFor(now time.Time, lazy bool) time.Time {
	switch {
	case l.local != nil || l.bytes > urgentBytes:
		return now
	case lazy:
		return pacing.Beat(now, lazyInterval)
	case now.Sub(l.lastSent) < pacing.Interval:
		return pacing.Beat(now, pacing.Interval)
	}
	return now
}

// Flush makes the pending batch due immediately.
func (l *Link) Flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.due.IsZero() {
		l.schedule(time.Now())
	}
}

// schedule makes the pending batch due at the given time, unless it is due earlier. The caller holds the
// lock.
func (l *Link) schedule(due time.Time) {
	if !l.due.IsZero() && !due.Before(l.due) {
		return
	}
	l.due = due
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// discardPending discards the pending batch, and all changes until the next connection. The caller holds
// the lock.
func (l *Link) discardPending() {
	l.discarding, l.pending, l.bytes, l.due = true, &Batch{}, 0, time.Time{}
	l.room.Broadcast()
}

// untilDue returns the time until the pending batch is due. It is negative if nothing is
// pending.
func (l *Link) untilDue() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Until(l.due)
}

// Connection returns the number of the current or last connection, counted from 1.
func (l *Link) Connection() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.connection
}

// Down returns the time at which the connection ended; zero while there is one.
func (l *Link) Down() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.down
}

// SentReservations returns the number of reservations that were sent on the current connection, and the
// connection's number. Both are 0 without a connection.
func (l *Link) SentReservations() (sent uint64, connection int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.discarding {
		return 0, 0
	}
	return l.reservations, l.connection
}

// WaitForRoom waits until the pending batch is at most fullSendPending bytes large. A caller that sends
// many objects calls it before each Send. It returns false if the connection or the context has ended.
func (l *Link) WaitForRoom(ctx context.Context) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.bytes > fullSendPending && !l.discarding && ctx.Err() == nil {
		l.room.Wait()
	}
	return !l.discarding && ctx.Err() == nil
}

// takePending removes and returns the pending batch; nil if nothing is pending. It returns errTooSlow if
// the pending batch was discarded.
func (l *Link) takePending() (*Batch, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.discarding {
		return nil, errTooSlow
	}
	if l.due.IsZero() {
		return nil, nil
	}
	b := l.pending
	l.pending, l.bytes, l.due, l.lastSent = &Batch{}, 0, time.Time{}, time.Now()
	l.room.Broadcast()
	return b, nil
}

// Run connects and sends batches until the context ends.
func (l *Link) Run(ctx context.Context) {
	logger := klog.FromContext(ctx)
	defer context.AfterFunc(ctx, l.wakeWaiters)()
	for ctx.Err() == nil {
		err := l.connect(ctx)
		if ctx.Err() == nil {
			logger.V(2).Info("Connection to another replica ended", "replica", l.to.Name, "err", err)
			linkResets.WithLabelValues(l.to.Name).Inc()
		}
		select {
		case <-ctx.Done():
		case <-time.After(reconnectDelay):
		}
	}
}

// connect opens a connection and sends batches until it ends.
func (l *Link) connect(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, l.wakeWaiters)()
	send, ended, err := l.open(ctx, cancel)
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.pending, l.bytes, l.discarding, l.due, l.lastSent = &Batch{}, 0, false, time.Time{}, time.Time{}
	l.connection, l.reservations, l.down = l.connection+1, 0, time.Time{}
	l.mu.Unlock()
	onConnectDone := make(chan struct{})
	go func() {
		defer close(onConnectDone)
		l.onConnect(ctx, l)
	}()
	// onConnect must have returned before the next connection starts.
	defer func() {
		cancel()
		l.mu.Lock()
		l.discardPending()
		l.down = time.Now()
		l.mu.Unlock()
		<-onConnectDone
	}()
	return l.sendBatches(ctx, send, ended)
}

// sendBatches sends each batch when it is due, until the connection ends.
func (l *Link) sendBatches(ctx context.Context, send func(*Batch) error, ended <-chan error) error {
	due := time.NewTimer(lazyInterval)
	defer due.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-l.wake:
			if delay := l.untilDue(); delay > 0 {
				due.Reset(delay)
				continue
			}
		case <-due.C:
		}
		b, err := l.takePending()
		if err == nil && b != nil {
			err = send(b)
		}
		if err != nil {
			return err
		}
	}
}

// open opens a connection. It returns a function that sends a batch, and a channel that receives the
// error that ended the connection.
func (l *Link) open(ctx context.Context, cancel func()) (func(*Batch) error, <-chan error, error) {
	ended := make(chan error, 1)
	if l.local != nil {
		l.local.Connected(l.from)
		return func(b *Batch) error { return receiveLocal(l.local, l.from, b) }, ended, nil
	}
	connection, err := l.dial.connections.get(l.to, l.dial.certificates)
	if err != nil {
		return nil, nil, err
	}
	stream, err := connection.NewStream(ctx, &grpc.StreamDesc{StreamName: "Send", ClientStreams: true, ServerStreams: true},
		"/"+serviceName+"/Send", grpc.WaitForReady(true))
	if err != nil {
		return nil, nil, err
	}
	if err := stream.SendMsg(&Batch{From: l.from}); err != nil {
		return nil, nil, err
	}
	timeout := time.AfterFunc(heartbeatTimeout, cancel)
	go func() {
		defer timeout.Stop()
		for {
			// The receiver sends only heartbeats, and at the end an error.
			if err := stream.RecvMsg(&Batch{}); err != nil {
				ended <- err
				cancel()
				return
			}
			timeout.Reset(heartbeatTimeout)
		}
	}()
	return func(b *Batch) error { return stream.SendMsg(b) }, ended, nil
}

// receiveLocal passes a batch of this replica to its own handler. It validates the batch like one of another
// replica: otherwise a malformed message would be noticed only if the owner of the node is another process.
func receiveLocal(handler Handler, from string, b *Batch) error {
	err := b.validate()
	if err == nil {
		err = handler.Receive(from, b)
	}
	if err != nil {
		refusedBatches.Inc()
	}
	return err
}

// wakeWaiters makes goroutines in WaitForRoom check their condition again.
func (l *Link) wakeWaiters() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.room.Broadcast()
}
