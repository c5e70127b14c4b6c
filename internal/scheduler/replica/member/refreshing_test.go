package member

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/refresh"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// listReceiver is a replica that records the pending pods and the starts and ends of lists that it receives. It ends each
// connection on which it receives an acknowledgement.
type listReceiver struct {
	mu      sync.Mutex
	pending []types.UID
	removed []types.UID // bound pods
	// lists are the IDs of the started lists, and ended the IDs of the requests whose lists have ended. slots are the numbers
	// of hash slots of which these lists had all pods.
	lists, ended []int64
	slots        []int
}

func (*listReceiver) Answer(context.Context, *wire.Request) *wire.Answer { return nil }

func (*listReceiver) Connected(string) {}

func (r *listReceiver) Receive(_ string, b *wire.Batch) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range b.Pending {
		r.pending = append(r.pending, b.Pending[i].UID)
	}
	for i := range b.Pods {
		if len(b.Pods[i].Object) == 0 {
			r.removed = append(r.removed, b.Pods[i].UID)
		}
	}
	for i := range b.Refreshing {
		r.lists = append(r.lists, b.Refreshing[i].ID)
	}
	for i := range b.Refreshed {
		r.ended, r.slots = append(r.ended, b.Refreshed[i].InReplyTo), append(r.slots, len(b.Refreshed[i].Slots))
	}
	if len(b.Acks) > 0 {
		return errors.New("the connection ends")
	}
	return nil
}

// TestListOfPodsEndsWithItsConnection ends the connection on which a list of pods is being sent. The rest of the list must
// not follow on the next connection, on which the peer gets another list.
func TestListOfPodsEndsWithItsConnection(t *testing.T) {
	receiver, self := &listReceiver{}, membership.Member{Name: "self"}
	link := wire.NewLoop(self, receiver, func(context.Context, *wire.Link) {})
	go link.Run(t.Context())
	await := func(condition string, holds func() bool) { t.Helper(); awaitCondition(t, condition, holds) }
	connected := func(connection int64) func() bool {
		return func() bool {
			_, current := link.SentReservations()
			return current == connection
		}
	}
	await("the first connection is open", connected(1))
	link.Send(func(b *wire.Batch) { b.Acks = append(b.Acks, wire.Ack{UID: "any"}) })
	await("the second connection is open", connected(2))
	m := &Member{peers: map[string]*peer{}, announced: map[string]int64{}}
	m.pods = newSlotWatcher(&v1.Pod{}, nil, nil, nil, nil)
	sender := func(connection int64) *podSender {
		return &podSender{m: m, to: "self", link: link, connection: connection, refresh: wire.Refresh{ID: connection}, podSlots: refresh.AllSlots(), leads: true}
	}
	for _, connection := range []int64{1, 2} {
		s := sender(connection)
		s.run(t.Context())
		s.send(schedtest.PlainPod([]string{"", "first", "second"}[connection], "1"))
	}
	want := schedtest.PlainPod("second", "1").UID
	received := func() bool {
		receiver.mu.Lock()
		defer receiver.mu.Unlock()
		return slices.Contains(receiver.pending, want) && slices.Contains(receiver.lists, 2)
	}
	await("the list of the second connection is received", received)
	receiver.mu.Lock()
	defer receiver.mu.Unlock()
	if len(receiver.pending) != 1 || len(receiver.lists) != 1 {
		t.Errorf("the peer received the pods %q and the starts of lists %d on the second connection, want only those of its own list", receiver.pending, receiver.lists)
	}
}

// awaitCondition waits until a condition holds.
func awaitCondition(t *testing.T, condition string, holds func() bool) {
	t.Helper()
	for started := time.Now(); !holds(); time.Sleep(time.Millisecond) {
		if time.Since(started) > schedtest.Patience {
			t.Fatalf("timed out waiting until %s", condition)
		}
	}
}

// TestOneListOfPodsAtATime lets a peer request pods again, for the next assignment, while a list for the previous one is
// being sent. The second list must follow the first. The first one does not say which pods exist: this replica may have lost
// hash slots meanwhile. So the second one has all of them.
func TestOneListOfPodsAtATime(t *testing.T) {
	receiver, self := &listReceiver{}, membership.Member{Name: "self"}
	link := wire.NewLoop(self, receiver, func(context.Context, *wire.Link) {})
	go link.Run(t.Context())
	awaitCondition(t, "the link is connected", func() bool {
		_, current := link.SentReservations()
		return current == 1
	})
	p := &peer{link: link, connection: 1, connectionCtx: t.Context(), wantedNodeSlots: refresh.AllSlots(), unsentPodSlots: refresh.AllSlots(), unlisted: listStarts{}}
	m := &Member{options: Options{Self: self}, table: membership.Assign(nil, []string{"self"}), ctx: t.Context(), peers: map[string]*peer{"self": p}, announced: map[string]int64{}, connections: map[string]int32{}, unchecked: map[string]*listedNodes{}}
	m.pods = newSlotWatcher(&v1.Pod{}, nil, nil, nil, nil)
	m.nodes = newSlotWatcher(&v1.Node{}, nil, nil, nil, nil)
	m.pods.synced.Store(true)
	request := func(number int64) {
		m.mu.Lock()
		m.assignment = &wire.Assignment{Term: 1, Number: number, Leader: self}
		m.appliedStamp, m.checkedStamp = m.currentStamp(), m.currentStamp()
		m.mu.Unlock()
		m.HandleNodesListed("self", &wire.Refresh{Term: 1, Number: number, ID: number})
	}
	m.pods.mu.Lock() // The first list waits for the pods.
	request(1)
	request(2)
	m.mu.Lock()
	if p.answeredID != 1 {
		t.Errorf("the list for request %d has started, want only the first", p.answeredID)
	}
	m.mu.Unlock()
	m.pods.mu.Unlock()
	awaitCondition(t, "both lists have ended", func() bool {
		receiver.mu.Lock()
		defer receiver.mu.Unlock()
		return len(receiver.ended) == 2
	})
	if want := []int64{1, 2}; !slices.Equal(receiver.ended, want) {
		t.Errorf("the lists for the requests %d have ended, want %d", receiver.ended, want)
	}
	if want := []int{0, membership.SlotCount}; !slices.Equal(receiver.slots, want) {
		t.Errorf("the lists had all pods of %d hash slots, want %d", receiver.slots, want)
	}
}
