package member

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// listReceiver is a replica that records the pending pods and the starts and ends of lists that it receives. It ends each
// connection on which it receives an acknowledgement.
type listReceiver struct {
	mu      sync.Mutex
	pending []types.UID
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
	m := newTestMember(t, nil, "self")
	m.pods.synced.Store(true)
	for _, connection := range []int64{1, 2} {
		m.core.PeerConnected("self", connection)
		m.core.Listed(time.Now(), "self", &wire.Refresh{Term: 2, Number: 1, ID: connection})
		s := &listSender{m: m, list: m.core.SendDue().Lists[0], link: link, ctx: t.Context()}
		s.run()
		s.send(schedtest.PlainPod([]string{"", "first", "second"}[connection], "1"))
	}
	want := schedtest.PlainPod("second", "1").UID
	received := func() bool {
		receiver.mu.Lock()
		defer receiver.mu.Unlock()
		return slices.Contains(receiver.pending, want) && len(receiver.lists) > 0
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
	loop := wire.NewLoop(self, receiver, func(context.Context, *wire.Link) {})
	go loop.Run(t.Context())
	awaitCondition(t, "the link is connected", func() bool {
		_, current := loop.SentReservations()
		return current == 1
	})
	m := newTestMember(t, nil, "self")
	m.links["self"] = &link{Link: loop, stop: func() {}, ctx: t.Context()}
	m.core.PeerConnected("self", 1)
	m.pods.synced.Store(true)
	request := func(number int64) {
		m.mu.Lock()
		m.follow(number, []membership.Member{self}, "self")
		m.mu.Unlock()
		m.HandleNodesListed("self", &wire.Refresh{Term: 2, Number: number, ID: number})
	}
	m.pods.mu.Lock() // The first list waits for the pods.
	request(1)
	request(2)
	m.mu.Lock()
	if due := m.core.SendDue().Lists; len(due) != 0 {
		t.Errorf("%d lists start while the first is being sent, want none", len(due))
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
