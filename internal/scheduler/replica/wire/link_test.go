package wire

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/pacing"
)

// recorder is a Handler that counts connections and batches, and records the UIDs in Kept since the
// latest connection.
type recorder struct {
	mu          sync.Mutex
	connections int
	batches     int
	received    []types.UID
	answer      *Answer
}

func (r *recorder) Answer(context.Context, *Request) *Answer { return r.answer }

func (r *recorder) Receive(_ string, b *Batch) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, kept := range b.Kept {
		r.received = append(r.received, kept.UID)
	}
	r.batches++
	return nil
}

func (r *recorder) Connected(string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.connections++
	r.received = nil
}

// counts returns the number of connections, and of UIDs since the latest connection.
func (r *recorder) counts() (connections, received int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.connections, len(r.received)
}

// serve starts a server, and returns its address and a function that stops it.
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

// patience bounds what takes less than a second on a machine without other work.
const patience = 3 * time.Minute

// eventually waits until a condition holds.
func eventually(t *testing.T, condition string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if holds() {
			return
		}
	}
	t.Fatalf("timed out after %v waiting until %s", patience, condition)
}

// TestLinkSendsEverythingAgainAfterRestart checks that all changes are sent, and that all are sent
// again after the receiver has restarted.
func TestLinkSendsEverythingAgainAfterRestart(t *testing.T) {
	other := &recorder{}
	address, stop := serve(t, "127.0.0.1:0", other)
	var mu sync.Mutex
	var all []types.UID
	add := func(uid types.UID) func(*Batch) { return func(b *Batch) { b.Kept = append(b.Kept, Renewal{UID: uid}) } }
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
	eventually(t, "the link is connected", func() bool { connections, _ := other.counts(); return connections == 1 })
	for i := range 1000 {
		send(types.UID(rune('a' + i%26)))
	}
	eventually(t, "1000 changes are received", func() bool { _, received := other.counts(); return received == 1000 })
	stop()
	send("meanwhile")
	restarted := &recorder{}
	_, stop = serve(t, address, restarted)
	defer stop()
	eventually(t, "1001 changes are received after one connection", func() bool {
		connections, received := restarted.counts()
		return connections == 1 && received == 1001
	})
	cancel()
	<-done
}

// TestDueTimeOfChanges checks when a link sends changes: immediately after a pause, at the next
// beat otherwise, at a longer beat if they are lazy, and immediately if there are many.
func TestDueTimeOfChanges(t *testing.T) {
	at := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		link *Link
		now  time.Time
		lazy bool
		want time.Duration
	}{
		"first change":                  {&Link{}, at, false, 0},
		"change soon after a batch":     {&Link{lastSent: at}, at.Add(10 * time.Millisecond), false, pacing.Interval - 10*time.Millisecond},
		"change a beat after a batch":   {&Link{lastSent: at}, at.Add(pacing.Interval), false, 0},
		"lazy change":                   {&Link{}, at.Add(pacing.Interval), true, lazyInterval - pacing.Interval},
		"many bytes pending":            {&Link{lastSent: at, bytes: urgentBytes + 1}, at, true, 0},
		"link of a replica with itself": {&Link{lastSent: at, local: &recorder{}}, at, true, 0},
	} {
		if got := c.link.dueFor(c.now, c.lazy).Sub(c.now); got != c.want {
			t.Errorf("%s: due in %v, want %v", name, got, c.want)
		}
	}
}

// TestBurstIsSentInFewBatches sends many changes at once, half of them lazy. Flush sends a lazy
// change immediately.
func TestBurstIsSentInFewBatches(t *testing.T) {
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
	eventually(t, "the link is connected", func() bool { return link.Connection() == 1 && link.Down().IsZero() })
	add := func(b *Batch) { b.Kept = append(b.Kept, Renewal{UID: "pod"}) }
	for i := range 500 {
		if i%2 == 0 {
			link.SendLater(add)
		} else {
			link.Send(add)
		}
	}
	eventually(t, "500 changes are received", func() bool { _, received := other.counts(); return received == 500 })
	other.mu.Lock()
	batches := other.batches
	other.mu.Unlock()
	if batches > 50 {
		t.Errorf("a burst of 500 changes was sent in %d batches, want at most 50", batches)
	}
	link.SendLater(add)
	link.Flush()
	eventually(t, "the flushed change is received", func() bool { _, received := other.counts(); return received == 501 })
}

// TestTooLargeMessageFailsOnlyItsPod has a replica answer with more bytes than a message may have, and sends it such a query.
// The replica has failed to evaluate the pod of the query; it is not absent.
func TestTooLargeMessageFailsOnlyItsPod(t *testing.T) {
	large := make([]byte, maxMessage)
	for name, c := range map[string]struct{ query, answer []byte }{"answer": {nil, large}, "query": {large, nil}} {
		address, _ := serve(t, "127.0.0.1:0", &recorder{answer: &Answer{Values: []string{NoValue, ""}, Node: c.answer}})
		dial := NewDialer(nil)
		q := &Request{Query: &Query{Pod: c.query}, Term: 1, Number: 1, Patience: Patience{Deadline: MaxDeadline, Quorum: 100}}
		answer := dial.Scatter(t.Context(), nil, []membership.Member{{Name: "other", Address: address}}, 10, nil, q)
		if len(answer.Absent) > 0 || !strings.HasPrefix(answer.Failed, "other: ") {
			t.Errorf("too large %s: Scatter() = failure %q, absent %v, errors %v, want a failure of replica other", name, answer.Failed, answer.Absent, answer.Errors)
		}
	}
}

// TestScatterQueriesTree queries trees of replicas over real connections, also with a replica that
// cannot be reached.
func TestScatterQueriesTree(t *testing.T) {
	var members []membership.Member
	for i := range 7 {
		address, stop := serve(t, "127.0.0.1:0", &recorder{answer: &Answer{Values: []string{NoValue, ""}, Summary: index.Summary{Nodes: 1}}})
		defer stop()
		members = append(members, membership.Member{Name: string(rune('a' + i)), Address: address})
	}
	members = append(members, membership.Member{Name: "unreachable", Address: "127.0.0.1:1"})
	for fanout := 1; fanout <= 8; fanout++ {
		q := &Request{Query: &Query{Offers: 1}, Patience: Patience{Deadline: MaxDeadline, Quorum: 100}}
		answer := NewDialer(nil).Scatter(t.Context(), nil, members[:7], fanout, nil, q)
		if answer.Summary.Nodes != 7 || len(answer.Absent) > 0 {
			t.Errorf("Scatter() with fanout %d = %d nodes, absent %v, errors %v, want 7 nodes and none absent", fanout, answer.Summary.Nodes, answer.Absent, answer.Errors)
		}
	}
	q := &Request{Query: &Query{Offers: 1}, Patience: Patience{Deadline: 10 * time.Second, Quorum: 100}}
	answer := NewDialer(nil).Scatter(t.Context(), nil, members, 8, nil, q)
	if answer.Summary.Nodes != 7 || len(answer.Absent) != 1 {
		t.Errorf("Scatter() with an unreachable replica = %d nodes, absent %v, errors %v, want 7 nodes and one absent", answer.Summary.Nodes, answer.Absent, answer.Errors)
	}
}
