package wire

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
)

// recorder is a replica that notes what it is told.
type recorder struct {
	mu       sync.Mutex
	begun    int
	told     []types.UID
	batches  int
	answered *Answer
}

func (r *recorder) Answer(context.Context, *Question) *Answer { return r.answered }

func (r *recorder) Receive(_ string, b *Batch) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(r.told, b.Kept...)
	r.batches++
	return nil
}

func (r *recorder) Connected(string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begun++
	r.told = nil
}

func (r *recorder) has(want int) (int, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.begun, len(r.told) == want
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
	t.Fatalf("not within ten seconds: %s", what)
}

// TestLink: everything is told in order, and anew when the other replica comes back.
func TestLink(t *testing.T) {
	other := &recorder{}
	address, stop := serve(t, "127.0.0.1:0", other)
	var mu sync.Mutex
	var all []types.UID
	add := func(uid types.UID) func(*Batch) { return func(b *Batch) { b.Kept = append(b.Kept, uid) } }
	link := NewLink("me", Member{Name: "other", Address: address}, NewDialer(nil), func(ctx context.Context, l *Link) {
		mu.Lock()
		defer mu.Unlock()
		for _, uid := range all {
			l.Room(ctx)
			l.Tell(add(uid))
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		link.Run(ctx)
	}()
	tell := func(uid types.UID) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, uid)
		link.Tell(add(uid))
	}
	eventually(t, "a connection", func() bool { begun, _ := other.has(0); return begun == 1 })
	for i := range 1000 {
		tell(types.UID(rune('a' + i%26)))
	}
	eventually(t, "everything told", func() bool { _, told := other.has(1000); return told })
	stop()
	tell("meanwhile")
	again := &recorder{}
	_, stop = serve(t, address, again)
	defer stop()
	eventually(t, "everything told anew", func() bool { begun, told := again.has(1001); return begun == 1 && told })
	cancel()
	<-done
}

// TestPace: what is told after a while is due at once, what follows with the next beat, and
// what has time within a longer one, unless there is much.
func TestPace(t *testing.T) {
	at := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		link    *Link
		now     time.Time
		hasTime bool
		want    time.Duration
	}{
		"first":      {&Link{}, at, false, 0},
		"follows":    {&Link{sent: at}, at.Add(10 * time.Millisecond), false, pace - 10*time.Millisecond},
		"much later": {&Link{sent: at}, at.Add(pace), false, 0},
		"has time":   {&Link{}, at.Add(pace), true, later - pace},
		"much":       {&Link{sent: at, bytes: enoughToSend + 1}, at, true, 0},
		"to itself":  {&Link{sent: at, loop: &recorder{}}, at, true, 0},
	} {
		if got := c.link.dueFor(c.now, c.hasTime).Sub(c.now); got != c.want {
			t.Errorf("%s: due in %v, not %v", name, got, c.want)
		}
	}
}

// TestBatches: a burst goes in few messages, and what has time goes with what has not.
func TestBatches(t *testing.T) {
	other := &recorder{}
	address, stop := serve(t, "127.0.0.1:0", other)
	defer stop()
	link := NewLink("me", Member{Name: "other", Address: address}, NewDialer(nil), func(context.Context, *Link) {})
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
			link.TellLater(add)
		} else {
			link.Tell(add)
		}
	}
	eventually(t, "all are told", func() bool { _, told := other.has(500); return told })
	other.mu.Lock()
	batches := other.batches
	other.mu.Unlock()
	if batches > 50 {
		t.Errorf("%d messages for 500 in a burst", batches)
	}
	link.TellLater(add)
	link.Flush()
	eventually(t, "what was flushed is told", func() bool { _, told := other.has(501); return told })
}

// TestScatter asks through a tree of processes that are really connected.
func TestScatter(t *testing.T) {
	var members []Member
	for i := range 7 {
		address, stop := serve(t, "127.0.0.1:0", &recorder{answered: &Answer{Values: []string{NoValue, ""}, Summary: index.Summary{Nodes: 1}}})
		defer stop()
		members = append(members, Member{Name: string(rune('a' + i)), Address: address})
	}
	members = append(members, Member{Name: "gone", Address: "127.0.0.1:1"})
	for fanout := 1; fanout <= 8; fanout++ {
		q := &Question{Ask: &Ask{Offers: 1}, Patience: Patience{Deadline: 5 * time.Second, Quorum: 100}}
		answer := NewDialer(nil).Scatter(t.Context(), nil, members[:7], fanout, nil, q)
		if answer.Summary.Nodes != 7 || len(answer.Absent) > 0 {
			t.Errorf("with a fanout of %d: %d nodes, absent %v, errors %v", fanout, answer.Summary.Nodes, answer.Absent, answer.Errors)
		}
	}
	q := &Question{Ask: &Ask{Offers: 1}, Patience: Patience{Deadline: 5 * time.Second, Quorum: 100}}
	answer := NewDialer(nil).Scatter(t.Context(), nil, members, 8, nil, q)
	if answer.Summary.Nodes != 7 || len(answer.Absent) != 1 {
		t.Errorf("with one gone: %d nodes, absent %v, errors %v", answer.Summary.Nodes, answer.Absent, answer.Errors)
	}
}
