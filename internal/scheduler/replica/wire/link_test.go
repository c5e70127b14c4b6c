package wire

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/pacing"
)

// recorder is a Handler that records the UIDs in Kept.
type recorder struct {
	mu       sync.Mutex
	begun    int
	received []types.UID
	batches  int
	answer   *Answer
}

func (r *recorder) Answer(context.Context, *Request) *Answer { return r.answer }

func (r *recorder) Receive(_ string, b *Batch) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.received = append(r.received, b.Kept...)
	r.batches++
	return nil
}

func (r *recorder) Connected(string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begun++
	r.received = nil
}

func (r *recorder) has(want int) (int, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.begun, len(r.received) == want
}

func serve(t *testing.T, address string, handler Handler) (string, func()) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = Serve(ctx, listener, nil, handler, NewDialer(nil))
	}()
	return listener.Addr().String(), func() { cancel(); <-done }
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for range 1000 {
		if is() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("not within 10 s: %s", what)
}

// TestLink checks that changes are sent in order, and all are sent again after the
// receiver has restarted.
func TestLink(t *testing.T) {
	other := &recorder{}
	address, stop := serve(t, "127.0.0.1:0", other)
	var mu sync.Mutex
	var all []types.UID
	add := func(uid types.UID) func(*Batch) { return func(b *Batch) { b.Kept = append(b.Kept, uid) } }
	link := NewLink("me", membership.Member{Name: "other", Address: address}, NewDialer(nil), func(ctx context.Context, l *Link) {
		mu.Lock()
		defer mu.Unlock()
		for _, uid := range all {
			l.WaitForRoom(ctx)
			l.Send(add(uid))
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		link.Run(ctx)
	}()
	send := func(uid types.UID) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, uid)
		link.Send(add(uid))
	}
	eventually(t, "a connection", func() bool { begun, _ := other.has(0); return begun == 1 })
	for i := range 1000 {
		send(types.UID(rune('a' + i%26)))
	}
	eventually(t, "everything sent", func() bool { _, complete := other.has(1000); return complete })
	stop()
	send("meanwhile")
	again := &recorder{}
	_, stop = serve(t, address, again)
	defer stop()
	eventually(t, "everything sent again", func() bool { begun, complete := again.has(1001); return begun == 1 && complete })
	cancel()
	<-done
}

// TestPace checks when changes are due: at once after a pause, at the next beat otherwise,
// at a longer beat if lazy, and at once if there are many.
func TestPace(t *testing.T) {
	at := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		link *Link
		now  time.Time
		lazy bool
		want time.Duration
	}{
		"first":      {&Link{}, at, false, 0},
		"follows":    {&Link{lastSent: at}, at.Add(10 * time.Millisecond), false, pacing.Interval - 10*time.Millisecond},
		"much later": {&Link{lastSent: at}, at.Add(pacing.Interval), false, 0},
		"lazy":       {&Link{}, at.Add(pacing.Interval), true, lazyInterval - pacing.Interval},
		"much":       {&Link{lastSent: at, bytes: urgentBytes + 1}, at, true, 0},
		"to itself":  {&Link{lastSent: at, local: &recorder{}}, at, true, 0},
	} {
		if got := c.link.dueFor(c.now, c.lazy).Sub(c.now); got != c.want {
			t.Errorf("%s: due in %v, not %v", name, got, c.want)
		}
	}
}

// TestBatches checks that a burst is sent in few batches, lazy changes included.
func TestBatches(t *testing.T) {
	other := &recorder{}
	address, stop := serve(t, "127.0.0.1:0", other)
	defer stop()
	link := NewLink("me", membership.Member{Name: "other", Address: address}, NewDialer(nil), func(context.Context, *Link) {})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		link.Run(ctx)
	}()
	defer func() { cancel(); <-done }()
	eventually(t, "a connection", func() bool { return link.Connection() == 1 && link.Down().IsZero() })
	add := func(b *Batch) { b.Kept = append(b.Kept, "pod") }
	for i := range 500 {
		if i%2 == 0 {
			link.SendLater(add)
		} else {
			link.Send(add)
		}
	}
	eventually(t, "all are sent", func() bool { _, complete := other.has(500); return complete })
	other.mu.Lock()
	batches := other.batches
	other.mu.Unlock()
	if batches > 50 {
		t.Errorf("%d batches for a burst of 500 changes", batches)
	}
	link.SendLater(add)
	link.Flush()
	eventually(t, "the flushed change is sent", func() bool { _, complete := other.has(501); return complete })
}

// TestScatter queries a tree of replicas over real connections.
func TestScatter(t *testing.T) {
	var members []membership.Member
	for i := range 7 {
		address, stop := serve(t, "127.0.0.1:0", &recorder{answer: &Answer{Values: []string{NoValue, ""}, Summary: index.Summary{Nodes: 1}}})
		defer stop()
		members = append(members, membership.Member{Name: string(rune('a' + i)), Address: address})
	}
	members = append(members, membership.Member{Name: "gone", Address: "127.0.0.1:1"})
	for fanout := 1; fanout <= 8; fanout++ {
		q := &Request{Query: &Query{Offers: 1}, Patience: Patience{Deadline: 5 * time.Second, Quorum: 100}}
		answer := NewDialer(nil).Scatter(t.Context(), nil, members[:7], fanout, nil, q)
		if answer.Summary.Nodes != 7 || len(answer.Absent) > 0 {
			t.Errorf("with a fanout of %d: %d nodes, absent %v, errors %v", fanout, answer.Summary.Nodes, answer.Absent, answer.Errors)
		}
	}
	q := &Request{Query: &Query{Offers: 1}, Patience: Patience{Deadline: 5 * time.Second, Quorum: 100}}
	answer := NewDialer(nil).Scatter(t.Context(), nil, members, 8, nil, q)
	if answer.Summary.Nodes != 7 || len(answer.Absent) != 1 {
		t.Errorf("with one gone: %d nodes, absent %v, errors %v", answer.Summary.Nodes, answer.Absent, answer.Errors)
	}
}
