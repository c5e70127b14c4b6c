package core

import (
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// allListed is the environment of a member whose watches have listed all objects and that reaches all peers.
type allListed struct{}

func (allListed) Listed() (nodes, pods bool) { return true, true }

func (allListed) Progress() int64 { return 0 }

func (allListed) Unreachable(string) bool { return false }

// noNodes are nodes on which everything fits.
type noNodes struct{}

func (noNodes) AddPod(*v1.Pod)                            {}
func (noNodes) UpdatePod(_, _ *v1.Pod)                    {}
func (noNodes) RemovePod(*v1.Pod)                         {}
func (noNodes) Assume(*v1.Pod) error                      { return nil }
func (noNodes) Forget(*v1.Pod)                            {}
func (noNodes) Refuses(*v1.Pod, *wire.Reservation) string { return "" }
func (noNodes) Nominate(string, *v1.Pod)                  {}
func (noNodes) Withdraw(string, types.UID)                {}
func (noNodes) Expired(*v1.Pod)                           {}

// announcing is a member with a ledger, at a time. pods are the pods that it watches.
type announcing struct {
	*Member
	now    time.Time
	ledger *Ledger
	pods   []*v1.Pod
}

// newAnnouncing returns a member that follows an assignment of hash slot 1 to replica "a" and of slot 2 to "b".
func newAnnouncing(t *testing.T) *announcing {
	t.Helper()
	m := &announcing{Member: NewMember(MemberConfig{Self: "self"}, allListed{}), now: time.Unix(1_000_000, 0), ledger: NewLedger(noNodes{})}
	m.table, m.assignment = make(membership.Table, membership.SlotCount), &wire.Assignment{Term: 1, Number: 1}
	m.table[1], m.table[2] = "a", "b"
	for _, name := range []string{"a", "b"} {
		m.Connected(name)
	}
	return m
}

// carryOut carries out an output, as far as it concerns this replica.
func (m *announcing) carryOut(out MemberOutput) {
	if out.DropPods {
		m.ledger.DropNodes(m.OwnsNode)
	}
	for _, pod := range m.pods {
		if slices.Contains(out.Resend, pod.UID) || out.ResendOn[HashOf(pod.Spec.NodeName)] {
			m.Pod(m.now, pod)
		}
	}
	if len(out.Senders) > 0 {
		m.Settle(out.Senders)
	}
}

// adopt makes the member follow an assignment.
func (m *announcing) adopt(a *wire.Assignment) { m.carryOut(m.Adopt(m.now, a, false)) }

// follow makes the member follow a later assignment, in which a replica owns a hash slot.
func (m *announcing) follow(number int64, slot int, owner string) {
	m.table[slot], m.assignment = owner, &wire.Assignment{Term: 1, Number: number}
	var out MemberOutput
	m.useWaitingAt(m.now, &out)
	m.carryOut(out)
}

func (m *announcing) HandleNodes(from string, nodes []wire.NodeName) (bool, error) {
	moved, out, err := m.Nodes(from, nodes)
	m.carryOut(out)
	return moved, err
}

func (m *announcing) HandleGoneNodes(from string, nodes []wire.NodeName) error {
	out, err := m.GoneNodes(m.now, from, nodes)
	m.carryOut(out)
	return err
}

// reportGone reports the deletion of a node.
func (m *announcing) reportGone(t *testing.T, from string, nodes ...wire.NodeName) {
	t.Helper()
	if err := m.HandleGoneNodes(from, nodes); err != nil {
		t.Fatal(err)
	}
}

func (m *announcing) HandleNodesListed(from string, listed *wire.Refresh) {
	m.carryOut(m.Listed(m.now, from, listed))
}

func (m *announcing) nodeChanged(before, after *v1.Node) {
	_, out := m.NodeChanged(m.now, before, after, false)
	m.carryOut(out)
}

// forgetNodes forgets the nodes that were deleted some time ago, and on which no pod is watched.
func (m *announcing) forgetNodes() {
	old := m.OldGoneNodes(m.now)
	for _, pod := range m.pods {
		delete(old, HashOf(pod.Spec.NodeName))
	}
	m.carryOut(m.ForgetNodes(m.now, old))
	m.settleAll()
}

func (m *announcing) settleAll() {
	for _, name := range m.TakeSettled() {
		m.carryOut(m.ConfirmSettled(name))
	}
}

// node returns the announcement of a node. Its number is the creation time.
func node(name string, slot int16, created int64) []wire.NodeName {
	return []wire.NodeName{{Hash: HashOf(name), Slot: slot, Created: created, Number: created}}
}

// listed returns the report of a replica that follows an assignment that it has announced all nodes in a slot. The list
// has started after the announcements with a lower number than since, and ended after those with a lower number than id.
func listed(number int64, slot int, since, id int64) *wire.Refresh {
	return &wire.Refresh{Term: 1, Number: number, Slots: []int{slot}, Since: []int64{since}, ID: id}
}

// TestAnnouncementsWaitForAssignment has a replica announce nodes in a hash slot that it gets with the next assignment, and
// report that before this replica follows it.
func TestAnnouncementsWaitForAssignment(t *testing.T) {
	m := newAnnouncing(t)
	m.HandleNodes("b", node("moved", 2, 10))
	m.HandleNodes("b", node("deleted", 2, 10))
	m.HandleNodes("a", node("moved", 2, 10))
	m.HandleNodes("a", node("new", 2, 20))
	m.HandleNodesListed("a", listed(2, 2, 10, 21))
	// The replica announces a node that it gets with a still later assignment.
	m.HandleNodes("a", node("later", 3, 30))
	if m.NodeOwner("moved") != "b" || m.NodeOwner("new") != "" || !m.waits("a") {
		t.Errorf("owners before the assignment: %q and %q, want b and none", m.NodeOwner("moved"), m.NodeOwner("new"))
	}
	m.follow(2, 2, "a")
	m.settleAll()
	_, gone := m.goneNodes[HashOf("deleted")]
	if m.NodeOwner("moved") != "a" || m.NodeOwner("new") != "a" || !gone || len(m.goneNodes) != 1 || !m.waits("a") {
		t.Errorf("owners after it: %q and %q, want a; the missing node counts as deleted: %t", m.NodeOwner("moved"), m.NodeOwner("new"), gone)
	}
	m.follow(3, 3, "a")
	m.settleAll()
	if m.NodeOwner("later") != "a" || m.waits("a") {
		t.Errorf("owner after the last assignment: %q, want a", m.NodeOwner("later"))
	}
}

// TestAnnouncementsOfFormerOwnerAreForgotten has a replica announce a node in a hash slot that it has lost. When it follows
// the current assignment too, the announcement does not hold back its later ones.
func TestAnnouncementsOfFormerOwnerAreForgotten(t *testing.T) {
	m := newAnnouncing(t)
	m.HandleNodes("a", node("lost", 2, 10))
	m.HandleNodesListed("a", listed(1, 1, 10, 11))
	m.settleAll()
	if m.waits("a") || m.NodeOwner("lost") != "" {
		t.Errorf("the announcement waits: %t; owner %q, want none", m.waits("a"), m.NodeOwner("lost"))
	}
}

// TestAnnouncementAfterReport has a replica announce a node for its next assignment after its report for the current one,
// in the same batch: the announcement is received first.
func TestAnnouncementAfterReport(t *testing.T) {
	m := newAnnouncing(t)
	m.HandleNodes("a", node("later", 3, 30))
	m.HandleNodesListed("a", listed(1, 1, 10, 20))
	m.settleAll()
	if !m.waits("a") {
		t.Error("the announcement does not wait, although the report is older")
	}
	m.follow(2, 3, "a")
	m.settleAll()
	if m.NodeOwner("later") != "a" || m.waits("a") {
		t.Errorf("owner %q, want a; waits: %t", m.NodeOwner("later"), m.waits("a"))
	}
}

// TestNodeIsDeletedWhileOwnerListsAgain has a node be deleted while its owner, which has missed an assignment, watches
// nothing. The owner does not report the deletion, and the node is created again in the hash slot of another one.
func TestNodeIsDeletedWhileOwnerListsAgain(t *testing.T) {
	m := newAnnouncing(t)
	m.HandleNodesListed("a", listed(1, 1, 10, 20))
	m.HandleNodes("a", node("deleted", 1, 30))
	m.HandleNodes("a", node("kept", 1, 31))
	m.follow(3, 1, "a")
	m.HandleNodes("b", node("deleted", 2, 50))
	m.HandleNodes("a", []wire.NodeName{{Hash: HashOf("kept"), Slot: 1, Created: 31, Number: 41}})
	m.HandleNodesListed("a", listed(3, 1, 40, 60))
	m.settleAll()
	if m.NodeOwner("deleted") != "b" || m.NodeOwner("kept") != "a" || m.waits("b") {
		t.Errorf("owners %q and %q, want b and a; the announcement waits: %t", m.NodeOwner("deleted"), m.NodeOwner("kept"), m.waits("b"))
	}
}

// TestNodeWithEarlierCreationTime has a node be deleted while its owner is not connected, and be created again after the
// clock was set back.
func TestNodeWithEarlierCreationTime(t *testing.T) {
	m := newAnnouncing(t)
	m.HandleNodes("a", node("node", 1, 20))
	m.Connected("a")
	m.HandleNodes("a", []wire.NodeName{{Hash: HashOf("node"), Slot: 1, Created: 10, Number: 30}})
	m.HandleNodesListed("a", listed(1, 1, 30, 31))
	m.settleAll()
	if _, gone := m.goneNodes[HashOf("node")]; gone || m.NodeOwner("node") != "a" {
		t.Errorf("owner %q, want a; counts as deleted: %t", m.NodeOwner("node"), gone)
	}
}

// TestNodeIsCreatedAgainOnItsOwner has a replica announce a deleted node and the one that has replaced it, in two hash slots
// of its own, in any order and at any time before the other replica follows its assignment. Then it reports the deletion.
func TestNodeIsCreatedAgainOnItsOwner(t *testing.T) {
	for name, test := range map[string]struct{ first, second, gone wire.NodeName }{
		"in order":             {node("node", 1, 10)[0], node("node", 3, 20)[0], node("node", 1, 10)[0]},
		"the later one first":  {node("node", 3, 20)[0], node("node", 1, 10)[0], node("node", 1, 10)[0]},
		"in one second":        {node("node", 3, 10)[0], node("node", 1, 10)[0], node("node", 1, 10)[0]},
		"the clock goes back":  {node("node", 1, 20)[0], node("node", 3, 10)[0], node("node", 1, 20)[0]},
		"later, and goes back": {node("node", 3, 10)[0], node("node", 1, 20)[0], node("node", 1, 20)[0]},
	} {
		for _, follows := range []string{"before", "between", "after"} {
			m := newAnnouncing(t)
			m.table[1] = "b"
			follow := func(when string) {
				if when == follows {
					m.table[1] = "a"
					m.follow(2, 3, "a")
				}
			}
			test.gone.Number = 100
			follow("before")
			m.HandleNodes("a", []wire.NodeName{test.first})
			follow("between")
			m.HandleNodes("a", []wire.NodeName{test.second})
			follow("after")
			m.reportGone(t, "a", test.gone)
			m.settleAll()
			known := m.slots[HashOf("node")]
			if _, gone := m.goneNodes[HashOf("node")]; gone || known.slot != 3 || m.waits("a") {
				t.Errorf("%s, assignment %s: the node is in slot %d, counts as deleted: %t, waits: %t, want slot 3", name, follows, known.slot, gone, m.waits("a"))
			}
		}
	}
}

// TestDeletionOfEarlierNode has a node be created again in the same second and hash slot. The deletion of the earlier one
// arrives in a batch with the announcement, which is received first.
func TestDeletionOfEarlierNode(t *testing.T) {
	m := newAnnouncing(t)
	again := wire.NodeName{Hash: HashOf("node"), Slot: 1, Created: 10, Number: 12}
	m.HandleNodes("a", []wire.NodeName{node("node", 1, 10)[0], again})
	m.reportGone(t, "a", wire.NodeName{Hash: HashOf("node"), Slot: 1, Created: 10, Number: 11})
	if len(m.goneNodes) != 0 {
		t.Error("the later node counts as deleted")
	}
}

// TestDeletionDuringUnknownAssignment has a node be deleted while this replica follows an assignment in which the reporting
// owner does not own it. The next leader did not know that assignment, so the owner has the node again, or still, and does not
// report the deletion again.
func TestDeletionDuringUnknownAssignment(t *testing.T) {
	const forgotten, gone = false, true
	for name, test := range map[string]struct {
		meanwhile func(*announcing)
		want      bool
	}{
		"nothing": {func(*announcing) {}, gone},
		"a later node in the same second": {func(m *announcing) {
			m.HandleNodes("a", []wire.NodeName{{Hash: HashOf("node"), Slot: 1, Created: 10, Number: 30}})
		}, forgotten},
		"a report for an earlier assignment":          {func(m *announcing) { m.HandleNodesListed("a", listed(1, 1, 5, 6)) }, gone},
		"the owner follows the assignment":            {func(m *announcing) { m.HandleNodesListed("a", listed(2, 3, 25, 26)) }, forgotten},
		"the owner has followed it before the report": {func(m *announcing) { m.HandleNodesListed("a", listed(2, 3, 15, 16)) }, gone},
		"a new connection":                            {func(m *announcing) { m.Connected("a") }, forgotten},
	} {
		m := newAnnouncing(t)
		m.HandleNodes("a", node("node", 1, 10))
		m.follow(2, 1, "b")
		m.reportGone(t, "a", wire.NodeName{Hash: HashOf("node"), Slot: 1, Created: 10, Number: 20})
		if m.isGone(HashOf("node")) {
			t.Errorf("%s: the report of another replica than the owner is believed", name)
		}
		test.meanwhile(m)
		m.follow(3, 1, "a")
		if got := m.isGone(HashOf("node")); got != test.want {
			t.Errorf("%s: the node counts as deleted: %t, want %t", name, got, test.want)
		}
		if len(m.waitingGone) > 0 {
			t.Errorf("%s: reports of %d replicas wait, want none", name, len(m.waitingGone))
		}
	}
}

// TestWaitingDeletionsAreBounded has a replica report the deletion of too many nodes of other replicas.
func TestWaitingDeletionsAreBounded(t *testing.T) {
	m, number := newAnnouncing(t), uint64(0)
	var err error
	for i := 0; err == nil && i <= maxWaitingNodes>>16; i++ {
		nodes := make([]wire.NodeName, 1<<16)
		for i := range nodes {
			number++
			nodes[i] = wire.NodeName{Hash: number, Slot: 2}
		}
		err = m.HandleGoneNodes("a", nodes)
	}
	if err == nil || len(m.waitingGone["a"]) > maxWaitingNodes+1 {
		t.Errorf("%d reports wait (%v), want an error", len(m.waitingGone["a"]), err)
	}
}

// TestNodeOfEndedOwnerIsCreatedAgain has the owner of a node end, and the node be created again in a hash slot of another
// replica. No replica reports the deletion of the earlier node.
func TestNodeOfEndedOwnerIsCreatedAgain(t *testing.T) {
	m := newAnnouncing(t)
	m.HandleNodes("a", node("node", 1, 10))
	m.HandleNodes("b", node("node", 2, 20))
	m.follow(2, 1, "c")
	m.Connected("c")
	if m.NodeOwner("node") != "c" || !m.waits("b") {
		t.Errorf("owner %q before the next owner has listed its nodes, want c", m.NodeOwner("node"))
	}
	m.HandleNodesListed("c", listed(2, 1, 10, 11))
	m.settleAll()
	if m.NodeOwner("node") != "b" || m.waits("b") {
		t.Errorf("owner %q, want b", m.NodeOwner("node"))
	}
}

// TestWaitingAnnouncementsAreBounded has a replica announce nodes of other replicas, and too many of its own.
func TestWaitingAnnouncementsAreBounded(t *testing.T) {
	m, created := newAnnouncing(t), int64(0)
	announce := func(slot int16) error {
		nodes := make([]wire.NodeName, 1<<16)
		for i := range nodes {
			created++
			nodes[i] = wire.NodeName{Hash: uint64(created), Slot: slot, Created: created}
		}
		_, err := m.HandleNodes("a", nodes)
		return err
	}
	if err := announce(1); err != nil || len(m.slots) != maxSlotNodes {
		t.Errorf("%d nodes of one hash slot are known (%v), want %d", len(m.slots), err, maxSlotNodes)
	}
	var err error
	for range 2 * maxWaitingNodes >> 16 {
		if err = announce(2); err != nil {
			break
		}
	}
	if err == nil || m.waiting["a"].count > maxWaitingNodes+1 {
		t.Errorf("%d announcements wait (%v), want an error", m.waiting["a"].count, err)
	}
}

// TestPodsOfNodeThatItsOwnerKnowsAsAnother has a node be created again in a hash slot of this replica. Another one has
// received the announcement and the report that the earlier node is gone, and sends a pod on the node before this one has
// received the report, or even its own announcement. Nobody would send the pod again.
func TestPodsOfNodeThatItsOwnerKnowsAsAnother(t *testing.T) {
	for _, test := range []struct{ announced, deleted bool }{{false, false}, {true, false}, {false, true}, {true, true}} {
		m := newAnnouncing(t)
		pod, again := schedtest.PlainPod("pod", "1"), schedtest.PlainNode("node", "4")
		pod.Spec.NodeName = again.Name
		m.table[membership.SlotOf(again.UID)], m.table[membership.SlotOf(pod.UID)] = "self", "b"
		m.Connected("self")
		m.HandleNodes("a", node("node", 1, 10))
		m.nodeChanged(nil, again)
		announcement := []wire.NodeName{nodeName(again, m.lastID)}
		if test.announced {
			m.HandleNodes("self", announcement)
		}
		m.ledger.SetPod(pod, func() bool { return m.Trusts("b", pod.UID) }, func() bool { return m.OwnsNode("node") })
		if !test.announced {
			m.HandleNodes("self", announcement)
		}
		want := 1
		if test.deleted {
			m.nodeChanged(again, nil)
			m.reportGone(t, "self", nodeName(again, m.lastID))
			want = 0
		} else {
			m.reportGone(t, "a", node("node", 1, 10)...)
		}
		if got := m.ledger.Counts().Pods; got != want {
			t.Errorf("%+v: the ledger has %d pods, want %d", test, got, want)
		}
	}
}

// TestAnnouncementWaitsForRoom has a hash slot with too many nodes. When some of them are forgotten, the announcement that
// waited is used and confirmed.
func TestAnnouncementWaitsForRoom(t *testing.T) {
	m := newAnnouncing(t)
	m.slotNodes[1] = maxSlotNodes
	m.HandleNodes("a", node("node", 1, 10))
	m.forgetNodes()
	if !m.waits("a") {
		t.Error("the announcement does not wait, although its hash slot has too many nodes")
	}
	m.slotNodes[1]--
	m.forgetNodes()
	if m.NodeOwner("node") != "a" || m.waits("a") {
		t.Errorf("owner %q, want a; the announcement waits: %t", m.NodeOwner("node"), m.waits("a"))
	}
}

// TestWaitingNodeThatIsNotListedAgain has a replica announce a node that waits, lose its hash slot and gain it again. The node
// was deleted meanwhile, which nobody reports.
func TestWaitingNodeThatIsNotListedAgain(t *testing.T) {
	m := newAnnouncing(t)
	m.HandleNodes("a", node("node", 1, 10))
	m.HandleNodes("b", node("node", 2, 20))
	m.HandleNodesListed("b", listed(1, 2, 15, 25))
	m.settleAll()
	if !m.waits("b") {
		t.Error("the announcement does not wait")
	}
	m.HandleNodesListed("b", listed(1, 2, 30, 40))
	m.settleAll()
	if m.waits("b") {
		t.Error("the announcement of a node that the list lacks waits")
	}
}

// TestRemovalOfPodInTransition removes pods on nodes that are or were owned by replica "a". While "b" may have kept them, it
// gets the removals, too.
func TestRemovalOfPodInTransition(t *testing.T) {
	m := newAnnouncing(t)
	received := map[string][]types.UID{}
	remove := func(pod string) {
		bound := schedtest.PlainPod(pod, "1")
		bound.Spec.NodeName = "node"
		for _, message := range m.PodChanged(m.now, bound, nil, true).Messages {
			b := &wire.Batch{}
			message.Add(b)
			to := []string{message.To}
			if message.To == "" {
				to = []string{"a", "b"}
			}
			for _, name := range to {
				received[name] = append(received[name], b.Pods[0].UID)
			}
		}
	}
	table := make(membership.Table, membership.SlotCount)
	table[1], table[2] = "b", "b"
	m.adopt(assignmentOf(1, table))
	m.HandleNodes("b", node("node", 1, 10))
	m.HandleNodesListed("b", listed(1, 1, 5, 11))
	remove("settled")
	moved := slices.Clone(table)
	moved[1] = "a"
	m.adopt(assignmentOf(2, moved))
	remove("moved")
	m.HandleNodesListed("a", listed(2, 1, 20, 21))
	remove("gone")
	m.HandleNodes("a", []wire.NodeName{{Hash: HashOf("node"), Slot: 1, Created: 10, Number: 30}})
	m.HandleNodes("b", []wire.NodeName{{Hash: HashOf("node"), Slot: 2, Created: 20, Number: 30}})
	remove("waiting")
	want := map[string][]types.UID{"a": {"moved", "gone", "waiting"}, "b": {"settled", "moved", "gone", "waiting"}}
	for name := range want {
		if !slices.Equal(received[name], want[name]) {
			t.Errorf("%s got the removals of %q, want %q", name, received[name], want[name])
		}
	}
}

// assignmentOf returns an assignment of hash slots.
func assignmentOf(number int64, table membership.Table) *wire.Assignment {
	a := &wire.Assignment{Term: 1, Number: number}
	a.SetTable(table)
	return a
}

// TestWatchedNodesThatAreLost removes all nodes of a replica that has missed an assignment.
func TestWatchedNodesThatAreLost(t *testing.T) {
	m := newAnnouncing(t)
	lost := schedtest.PlainNode("node", "4")
	m.NodeChanged(m.now, nil, lost, true)
	if len(m.watched) != 1 {
		t.Errorf("%d names of watched nodes, want 1", len(m.watched))
	}
	m.Cleared([]*v1.Node{lost})
	if len(m.watched) != 0 {
		t.Errorf("%d names of watched nodes after all were lost, want 0", len(m.watched))
	}
}
