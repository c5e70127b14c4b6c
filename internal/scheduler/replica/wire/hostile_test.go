package wire

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-base/metrics/testutil"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
)

// TestServeRequiresCertificatesBeyondLoopback checks that Serve without certificates rejects a
// listener on all addresses.
func TestServeRequiresCertificatesBeyondLoopback(t *testing.T) {
	listener, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if err := Serve(t.Context(), listener, nil, &recorder{}, NewDialer(nil)); err == nil || !strings.Contains(err.Error(), "need certificates") {
		t.Errorf("Serve() on 0.0.0.0 without certificates = %v, want an error with %q", err, "need certificates")
	}
}

// TestMalformedMessagesAreRejected checks that a malformed batch ends its stream with a one-line
// error, and that a malformed query is not answered.
func TestMalformedMessagesAreRejected(t *testing.T) {
	receiver := &recorder{answer: &Answer{}}
	address, stop := serve(t, "127.0.0.1:0", receiver)
	defer stop()
	dialer := NewDialer(nil)
	connection, err := dialer.connections.get(membership.Member{Address: address}, nil)
	if err != nil {
		t.Fatal(err)
	}
	RegisterMetrics()
	refusedBefore, err := testutil.GetCounterMetricValue(refusedBatches)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]any{
		"slot too large":   &Batch{From: "x", Listed: []Refresh{{Slots: []int{membership.SlotCount}, Since: []int64{1}}}},
		"no start of list": &Batch{From: "x", Listed: []Refresh{{Slots: []int{1, 2}, Since: []int64{1}}}},
		"negative slot":    &Batch{From: "x", Refreshed: []Refresh{{Slots: []int{-1}}}},
		"empty assignment": &Batch{From: "x", Assignments: []*Assignment{{}}},
		"nil assignment":   &Batch{From: "x", Assignments: []*Assignment{nil}},
		"65 assignments":   &Batch{From: "x", Assignments: slices.Repeat(seedBatch().Assignments, maxAssignments+1)},
		"huge term":        &Batch{From: "x", Status: &Status{Term: 1 << 62}},
		"no sender":        &Batch{},
		"not a batch":      []string{"not", "a", "batch"},
		"too large":        &Batch{From: "x", Kept: []Renewal{{UID: types.UID(strings.Repeat("x", maxMessage))}}},
	} {
		stream, err := connection.NewStream(t.Context(), &grpc.StreamDesc{StreamName: "Send", ClientStreams: true, ServerStreams: true}, "/"+serviceName+"/Send")
		if err != nil {
			t.Fatal(err)
		}
		_ = stream.SendMsg(b)
		for err = nil; err == nil; {
			err = stream.RecvMsg(&Batch{})
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %q has several lines, want one", name, err)
		}
	}
	const wantRefused = 7 // All but three: one has no sender, and two are not decoded.
	if refused, err := testutil.GetCounterMetricValue(refusedBatches); err != nil || refused-refusedBefore != wantRefused {
		t.Errorf("scheduler_replica_refused_batches_total has grown by %v (%v), want %d", refused-refusedBefore, err, wantRefused)
	}
	if _, received := receiver.counts(); received != 0 {
		t.Errorf("the receiver processed %d changes of malformed batches, want 0", received)
	}
	q := seedRequest()
	q.Query.Offers = -1
	if _, err := dialer.Query(t.Context(), &membership.Branch{Member: membership.Member{Address: address}}, q); err == nil {
		t.Error("Query() with -1 offers succeeded, want an error")
	}
}

// TestOverflowingLinkSendsEverythingAgain checks that a link to a slow receiver drops its pending
// batch when it is too large, and sends everything again.
func TestOverflowingLinkSendsEverythingAgain(t *testing.T) {
	slow := &blockedRecorder{recorder: recorder{}, release: make(chan struct{})}
	address, stop := serve(t, "127.0.0.1:0", slow)
	defer stop()
	link := NewLink("me", membership.Member{Name: "slow", Address: address}, NewDialer(nil), func(_ context.Context, l *Link) {
		l.Send(func(b *Batch) { b.Kept = append(b.Kept, Renewal{UID: "all"}) })
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go link.Run(ctx)
	eventually(t, "the link is connected", func() bool { return link.Connection() == 1 })
	object := make([]byte, 1<<20)
	for range 3 * maxPending >> 20 {
		link.Send(func(b *Batch) { b.Pods = append(b.Pods, Item{UID: "u", Object: object}) })
		link.mu.Lock()
		bytes := link.bytes
		link.mu.Unlock()
		if bytes > maxPending {
			t.Fatalf("%d bytes are pending, want at most %d", bytes, maxPending)
		}
	}
	close(slow.release)
	eventually(t, "everything is received after a second connection", func() bool {
		connections, received := slow.counts()
		return connections >= 2 && received == 1
	})
}

// blockedRecorder is a recorder that processes no batch until release is closed.
type blockedRecorder struct {
	recorder
	release chan struct{}
}

func (b *blockedRecorder) Receive(from string, batch *Batch) error {
	<-b.release
	return b.recorder.Receive(from, batch)
}

// TestLaterConnectionEndsEarlierSession checks that batches of a connection are rejected after a
// later connection of the same replica has started.
func TestLaterConnectionEndsEarlierSession(t *testing.T) {
	all, replaced := &sessions{latest: map[string]*session{}}, 0
	begin := func(from string, onEnd func()) *session {
		s, err := all.begin(t.Context(), from, onEnd)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	first := begin("a", func() { replaced++ })
	other := begin("b", func() { t.Error("the session of another replica is replaced") })
	second := begin("a", func() {})
	if s, err := all.begin(ended(t), "a", func() {}); err == nil || s != nil {
		t.Error("begin() of a connection that has ended succeeds, want an error")
	}
	processes := func(s *session) bool { return s.process(func() error { return nil }) == nil }
	if processes(first) || !processes(second) || !processes(other) {
		t.Errorf("batches processed: first session %v, second %v, of another replica %v, want false, true, true", processes(first), processes(second), processes(other))
	}
	if replaced != 1 {
		t.Errorf("the first session was replaced %d times, want 1: without that, its sender does not connect again", replaced)
	}
	all.end("a", first)
	if all.latest["a"] != second {
		t.Error("end() of the first session removed the second, want it kept")
	}
}

// ended returns a context that has ended.
func ended(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// TestReplacedConnectionGetsNoHeartbeats opens two connections of a replica. The receiver has ended the session of the first,
// so its sender must notice that although it has nothing to send.
func TestReplacedConnectionGetsNoHeartbeats(t *testing.T) {
	address, stop := serve(t, "127.0.0.1:0", &recorder{})
	defer stop()
	heartbeats := func(stream grpc.ClientStream) *atomic.Int32 {
		count := &atomic.Int32{}
		go func() {
			for stream.RecvMsg(&Batch{}) == nil {
				count.Add(1)
			}
		}()
		return count
	}
	ofFirst := heartbeats(openStream(t, address))
	eventually(t, "the first connection gets heartbeats", func() bool { return ofFirst.Load() > 0 })
	ofSecond := heartbeats(openStream(t, address))
	eventually(t, "the second connection gets heartbeats", func() bool { return ofSecond.Load() > 1 })
	before, later := ofFirst.Load(), ofSecond.Load()+3
	eventually(t, "the second connection gets more of them", func() bool { return ofSecond.Load() >= later })
	if n := ofFirst.Load() - before; n > 0 {
		t.Errorf("the first connection got %d heartbeats after the second one began, want 0", n)
	}
}

// openStream opens a connection of the replica "a" and sends a first batch.
func openStream(t *testing.T, address string) grpc.ClientStream {
	t.Helper()
	connection, err := NewDialer(nil).connections.get(membership.Member{Address: address}, nil)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := connection.NewStream(t.Context(), &grpc.StreamDesc{StreamName: "Send", ClientStreams: true, ServerStreams: true}, "/"+serviceName+"/Send")
	if err == nil {
		err = stream.SendMsg(&Batch{From: "a"})
	}
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// TestSlowBatchDelaysOnlyItsSender has two later connections of a replica wait for a batch that is being processed. Another
// replica can connect meanwhile, and the last connection is used only after the batch.
func TestSlowBatchDelaysOnlyItsSender(t *testing.T) {
	all := &sessions{latest: map[string]*session{}}
	slow, _ := all.begin(t.Context(), "slow", func() {})
	started, finish, finished := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(finished)
		_ = slow.process(func() error { close(started); <-finish; return nil })
	}()
	<-started
	later, other := make(chan *session, 2), make(chan *session, 1)
	for range 2 {
		go func() {
			s, _ := all.begin(t.Context(), "slow", func() {})
			later <- s
		}()
	}
	go func() {
		s, _ := all.begin(t.Context(), "other", func() {})
		other <- s
	}()
	select {
	case <-other:
	case <-time.After(patience):
		t.Error("another replica cannot connect for 10 s")
	}
	if len(later) > 0 {
		t.Error("a later connection starts while a batch of an earlier one is processed")
	}
	close(finish)
	<-finished
	first, second := <-later, <-later
	processes := func(s *session) bool { return s.process(func() error { return nil }) == nil }
	if a, b := processes(first), processes(second); a == b {
		t.Errorf("later connections that process batches: %t and %t, want one", a, b)
	}
}
