// Package fence stops the writes of a process before another process can become the leader.
//
// A [Fence] is open while the last renewal of the lease was sent less than the renew deadline ago. It checks each
// write twice: when a controller sends the request ([Fence.Wrap]), and when bytes are written to a connection
// ([Fence.Dial]). The second check catches requests that waited in the HTTP transport while the process was
// suspended. Before a process releases its lease, it closes the fence ([Fence.Close]), which waits until all
// writes have been answered.
package fence

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNotLeader is the error of a write that was not sent, because this process may no longer be the leader.
var ErrNotLeader = errors.New("not sent: this process does not hold the lease")

// ErrUnanswered means that a write ended without an answer, so the server may still execute it.
var ErrUnanswered = errors.New("a write was not answered")

// Fence decides whether writes may be sent. A new fence lets no write pass.
type Fence struct {
	now func() time.Duration // time since the machine was booted

	mu     sync.Mutex
	until  time.Duration // writes pass before this time; 0 if the process has not been the leader
	shut   bool          // the lease is lost
	closed bool
	// pending is the number of writes that were sent and have not been answered. drained is closed when the fence
	// is closed and pending is 0.
	pending int
	drained chan struct{}
	// A write ended at unanswered without an answer; 0 if there was none.
	unanswered time.Duration
}

// New returns a fence that lets no write pass.
func New() *Fence { return &Fence{now: sinceBoot, drained: make(chan struct{})} }

// sinceBoot returns the time since the machine was booted. It continues while a process is stopped and while the
// machine sleeps, unlike the clock of package time.
func sinceBoot() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		panic(fmt.Sprintf("reading CLOCK_BOOTTIME: %v", err)) // Linux 2.6.39 and later have this clock.
	}
	return time.Duration(now.Nano())
}

// Now returns the time of the fence, for [Fence.OpenUntil].
func (f *Fence) Now() time.Duration { return f.now() }

// OpenUntil lets writes pass until the given time. It has no effect after Shut or Close.
func (f *Fence) OpenUntil(until time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.until = max(f.until, until)
}

// Open lets writes pass until the fence is closed. It is for a process without leader election.
func (f *Fence) Open() { f.OpenUntil(math.MaxInt64) }

// Opened reports whether the fence has been open at some time.
func (f *Fence) Opened() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.until != 0
}

// begin returns an error if a write must not be sent. Otherwise the caller must call end after the write.
func (f *Fence) begin() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.shut || f.closed || f.now() >= f.until {
		return ErrNotLeader
	}
	f.pending++
	return nil
}

// end records the end of a write. answered reports whether the server has answered.
func (f *Fence) end(answered bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pending--
	if !answered {
		f.unanswered = f.now()
	}
	if f.closed && f.pending == 0 {
		close(f.drained)
	}
}

// expired reports whether the process has been the leader and must not write any more. Requests that passed begin
// before may still wait for a connection then.
func (f *Fence) expired() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.shut || f.until != 0 && f.now() >= f.until
}

// Shut stops all writes for ever, without waiting for answers: another process holds the lease.
func (f *Fence) Shut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shut = true
}

// Close lets no further write pass, and waits until all writes have been answered. It returns an error if ctx ends
// before, or if a write ended without an answer less than quarantine ago: the server may execute it later. The
// lease must then not be released. Close must be called once.
func (f *Fence) Close(ctx context.Context, quarantine time.Duration) error {
	f.mu.Lock()
	f.closed = true
	if f.pending == 0 {
		close(f.drained)
	}
	f.mu.Unlock()
	select {
	case <-f.drained:
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrUnanswered, ctx.Err())
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unanswered != 0 && f.now()-f.unanswered < quarantine {
		return fmt.Errorf("%w %v ago", ErrUnanswered, (f.now() - f.unanswered).Round(time.Millisecond))
	}
	return nil
}
