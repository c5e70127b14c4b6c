package core

import (
	"hash/fnv"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/refresh"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// Environment is what a member reads from the watches and the links of its process.
type Environment interface {
	// Listed returns whether the first list of each watch of nodes, and of pods, is complete.
	Listed() (nodes, pods bool)
	// Progress grows with each object that the first lists deliver.
	Progress() int64
	// Unreachable returns whether the link to a peer has had no connection for longer than [UnreachableAfter].
	Unreachable(name string) bool
}

// MemberConfig configures a member.
type MemberConfig struct {
	// Self is the name of this replica. Elected is true if leader election is used.
	Self    string
	Elected bool
	// Config is a digest of the configuration, for status reports.
	Config string
	// FirstID is the number before that of the first message. No earlier process with this name has used a higher one.
	FirstID int64
	// Fault is a deliberate fault; [NoFault] outside tests.
	Fault Fault
}

// Member is the state of a replica that follows the assignments of hash slots: which replica owns which node, what each
// peer was sent on the current connection to it, and what this replica still needs before it is ready.
//
// Invariants:
//   - A node name has one owner. An announcement in another hash slot waits until the earlier node is gone.
//   - The messages to a peer are those of the current connection. A new connection starts from nothing.
//   - This replica is ready only if it follows the current assignment, has listed the objects in its hash slots, and has
//     got from all owners the pods on its nodes for this assignment.
//   - A new node is used only after all owners and the leader have confirmed its announcement.
type Member struct {
	config      MemberConfig
	environment Environment

	assignment *wire.Assignment
	table      membership.Table
	// appliedStamp is the stamp of the last assignment that was completely applied (see [Member.Applied]).
	appliedStamp int64
	// checkedStamp is the stamp of the last assignment after which the API server has answered on the connection of the
	// watches (see [Member.Checked]).
	checkedStamp int64
	peers        map[string]*Peer
	// peerNames are the names of the peers, sorted.
	peerNames []string
	// earlyRequests are the requests for pods from replicas that are not peers yet, by name.
	earlyRequests map[string]*wire.Refresh
	// slots are the hash slots of all announced nodes, by the hash of the node's name.
	slots map[uint64]nodeSlot
	// goneNodes are those of these nodes that were deleted, and when this replica has learned that.
	goneNodes map[uint64]time.Time
	// movedSlots are the hash slots that have another owner, until this one has listed its nodes in them.
	movedSlots [membership.SlotCount]bool
	// slotNodes is the number of nodes in slots, by their hash slot.
	slotNodes [membership.SlotCount]int32
	// waiting are the announcements that this replica does not use yet, by sender. waitingGone are the reports about deleted
	// nodes, with the numbers of the reports.
	// settling are the senders of announcements that did wait, until the pods and reservations on their nodes were sent
	// and the announcements confirmed. settled are those that [Member.TakeSettled] returns next.
	waiting     map[string]*waitingNodes
	waitingGone map[string]map[goneNode]int64
	settling    map[string]int
	settled     []string
	// connections are the numbers of connections from each replica. unchecked are the reports that a replica has announced
	// all its nodes, as far as they were not compared with slots yet.
	connections map[string]int32
	unchecked   map[string]*listedNodes
	// announced is the last announcement of each replica on its current connection (see [wire.Batch.Announced]).
	announced map[string]int64
	// watched are the numbers of nodes that this replica watches, by the hash of their name. A node may have been created
	// again in another hash slot whose watch is ahead.
	watched map[uint64]int32
	// held are the new nodes of this replica that cannot be used yet.
	held heldNodes
	// lastID is the ID of the last request, list or announcement that this replica has sent.
	lastID int64
	// podsOfUnknownNodes are the pods that this replica watches on nodes that no replica has
	// announced, by node name.
	podsOfUnknownNodes map[string]sets.Set[types.UID]
	// refreshed are the replicas that have sent all pods on this replica's nodes for the current
	// assignment.
	refreshed sets.Set[string]
	// guests are the hashes of the names of unknown nodes for which this replica has counted pods. When such a node gets
	// another owner, these pods are removed.
	guests sets.Set[uint64]
}

// NewMember returns a member without an assignment.
func NewMember(config MemberConfig, environment Environment) *Member {
	return &Member{
		config: config, environment: environment, lastID: config.FirstID,
		peers: map[string]*Peer{}, slots: map[uint64]nodeSlot{}, goneNodes: map[uint64]time.Time{}, connections: map[string]int32{},
		unchecked: map[string]*listedNodes{}, announced: map[string]int64{}, earlyRequests: map[string]*wire.Refresh{},
		podsOfUnknownNodes: map[string]sets.Set[types.UID]{}, refreshed: sets.New[string](), watched: map[uint64]int32{},
		waiting: map[string]*waitingNodes{}, waitingGone: map[string]map[goneNode]int64{}, settling: map[string]int{}, guests: sets.New[uint64](),
	}
}

// MemberOutput is what the caller of a [Member] has to do, in the order of the fields. It does all up to Released before it
// makes the next call, so that the messages to each peer are in the order of the calls.
type MemberOutput struct {
	// Disconnect are the names of the peers whose links are closed. Connect are the replicas to which links are opened,
	// after that.
	Disconnect []string
	Connect    []membership.Member
	// Peers are all peers, if they may have changed: connections to other replicas are closed.
	Peers []membership.Member
	// Messages are sent in this order.
	Messages []Message
	// Released means that a new node is not held back any more. The caller wakes the queries that wait for that.
	Released bool
	// Lists are lists of pods that the caller sends (see [List]).
	Lists []*List
	// DropPods means that the owner removes the pods on nodes for which [Member.OwnsNode] returns false.
	DropPods bool
	// Resend are pods that this replica watches, and ResendOn are the hashes of the names of nodes: the caller calls
	// [Member.Pod] for these pods, and for all pods on these nodes. Then it calls [Member.Settle] with Senders.
	Resend   []types.UID
	ResendOn map[uint64]bool
	Senders  sets.Set[string]
}

// Message is a change that is added to the next batch to a peer.
type Message struct {
	// To is the name of the peer; "" for all peers.
	To string
	// Pinned is true if the message belongs to the connection with the number Connection. It is lost if that one has
	// ended.
	Pinned     bool
	Connection int64
	// Later is true if the message is not urgent.
	Later bool
	// Add adds the message to a batch.
	Add func(*wire.Batch)
}

func (o *MemberOutput) send(to string, add func(*wire.Batch)) {
	o.Messages = append(o.Messages, Message{To: to, Add: add})
}

func (o *MemberOutput) sendOn(to string, connection int64, add func(*wire.Batch)) {
	o.Messages = append(o.Messages, Message{To: to, Pinned: true, Connection: connection, Add: add})
}

func (o *MemberOutput) sendToAll(add func(*wire.Batch)) {
	o.Messages = append(o.Messages, Message{Add: add})
}

const (
	// maxEarlyRequests is the number of requests from replicas that are not peers yet. Further
	// requests are dropped.
	maxEarlyRequests = 10_000
	// UnreachableAfter is the time without a connection after which a peer counts as unreachable.
	UnreachableAfter = 1500 * time.Millisecond
)

// HashOf returns the hash of a node's name.
func HashOf(node string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(node))
	return h.Sum64()
}

// stamp combines the term and the number of an assignment into one integer. A later assignment has a
// higher stamp.
func stamp(term, number int64) int64 { return term<<24 | number }

// currentStamp returns the stamp of the current assignment; 0 before the first.
func (m *Member) currentStamp() int64 {
	if m.assignment == nil {
		return 0
	}
	return stamp(m.assignment.Term, m.assignment.Number)
}

// Assignment returns the assignment of hash slots that this replica follows; nil before the
// first.
func (m *Member) Assignment() *wire.Assignment { return m.assignment }

// Table returns a copy of the owners of all hash slots.
func (m *Member) Table() membership.Table { return slices.Clone(m.table) }

// Ready returns whether this replica follows the given assignment and has loaded all nodes and pods that
// belong to it.
func (m *Member) Ready(term, number int64) bool {
	return m.Complete() && m.currentStamp() == stamp(term, number)
}

// Complete returns whether this replica has loaded all nodes and pods of the current assignment: its own
// watches have listed, and all owners have sent their pods.
func (m *Member) Complete() bool {
	nodes, pods := m.environment.Listed()
	if m.assignment == nil || m.appliedStamp != m.currentStamp() || !nodes || !pods {
		return false
	}
	return m.refreshed.HasAll(m.assignment.Owners...) || m.config.Fault == ReadyWithoutPods
}

// NodeOwner returns the name of the replica that owns a node; "" if it is unknown.
func (m *Member) NodeOwner(node string) string {
	announced, ok := m.slots[HashOf(node)]
	if !ok || m.table == nil {
		return ""
	}
	return m.table[announced.slot]
}

// OwnsNode returns whether this replica owns a node. It returns true also if the owner is unknown, and if this replica
// watches the node but knows its name as that of another replica's node: the node was created again, and this replica has
// not received its own announcement yet, or not the report that the earlier node is gone. Others that have received both
// send the pods on the node already.
//
// It remembers that pods on an unknown node may count here from now on.
func (m *Member) OwnsNode(node string) bool {
	owner := m.NodeOwner(node)
	if owner == "" {
		m.guests.Insert(HashOf(node))
	}
	return owner == m.config.Self || owner == "" || m.watched[HashOf(node)] > 0
}

// slotOwner returns the replica that watches an object; "" if it is unknown.
func (m *Member) slotOwner(uid types.UID) string {
	if m.table == nil {
		return ""
	}
	return m.table[membership.SlotOf(uid)]
}

// Trusts returns whether a replica watches an object according to the current assignment. A replica that
// was suspended may send objects that another replica watches now. Before the first assignment, no
// replica is trusted: its messages may be for an earlier process with this replica's name.
func (m *Member) Trusts(from string, uid types.UID) bool {
	return from != "" && m.slotOwner(uid) == from
}

// SlotsOf returns those of the given slots that a replica owns.
func (m *Member) SlotsOf(owner string, slots []int) []int {
	return refresh.NewSlotSet(slots).Of(m.table, owner)
}

// Adopt makes an assignment the current one.
func (m *Member) Adopt(now time.Time, a *wire.Assignment, newTerm bool) (out MemberOutput) {
	if newTerm {
		for _, p := range m.peers {
			p.sentPending = false
		}
	}
	former := m.table
	m.assignment, m.table = a, a.Table()
	for slot, owner := range m.table {
		if former == nil || former[slot] != owner {
			m.movedSlots[slot] = true
		}
	}
	m.refreshed = sets.New[string]()
	m.useWaitingAt(now, &out)
	m.connect(append([]membership.Member{a.Leader}, a.Known...), &out)
	return out
}

// OwnSlots returns the hash slots of this replica.
func (m *Member) OwnSlots() []int { return m.table.Of(m.config.Self) }

// Cleared forgets the given nodes, because all watches were stopped.
func (m *Member) Cleared(nodes []*v1.Node) (out MemberOutput) {
	m.held.clear()
	for _, node := range nodes {
		m.countWatched(node, -1)
	}
	return MemberOutput{Released: true}
}

// StartLists returns a number for [Member.Applied]. What was announced so far in hash slots that this replica gains comes
// from an earlier list.
func (m *Member) StartLists() int64 {
	m.lastID++
	return m.lastID
}

// LostNodes forgets the nodes in hash slots that this replica has lost.
func (m *Member) LostNodes(nodes []*v1.Node) (out MemberOutput) {
	for _, node := range nodes {
		out.Released = m.held.remove(node.UID) || out.Released
		m.countWatched(node, -1)
	}
	return out
}

// Applied records that this replica watches the hash slots of its assignment. start is the result of
// [Member.StartLists]. It returns the stamp for [Member.Checked].
func (m *Member) Applied(start int64, gained []int) (stamp int64) {
	for _, p := range m.peers {
		for _, slot := range gained {
			p.unlisted[slot] = start
		}
		p.unsentPodSlots.Add(gained)
	}
	m.appliedStamp = m.currentStamp()
	return m.appliedStamp
}

// Outdated returns whether this replica follows another assignment than that of a stamp.
func (m *Member) Outdated(stamp int64) bool { return m.currentStamp() != stamp }

// Checked records that the API server has answered a request on the connection of the watches that was sent after this
// replica has followed the assignment of a stamp: what the watches had to deliver has arrived.
func (m *Member) Checked(stamp int64) { m.checkedStamp = max(m.checkedStamp, stamp) }

// Newer sends the current assignment to a replica that has sent an outdated one.
// Without a connection to the replica, the assignment is sent on the next one.
func (m *Member) Newer(from string, a *wire.Assignment) (out MemberOutput) {
	if p := m.peers[from]; p != nil {
		p.assigned = a
	}
	m.sendNewer(from, a, &out)
	return out
}

// sendNewer is [Member.Newer] for the last assignment of a replica; nil if it has sent none.
func (m *Member) sendNewer(from string, a *wire.Assignment, out *MemberOutput) {
	latest := m.assignment
	if !m.isOutdated(from, a) {
		return
	}
	out.send(from, func(b *wire.Batch) {
		// The number of assignments in a batch is limited. One answer is enough for all that the replica has sent.
		if n := len(b.Assignments); n == 0 || b.Assignments[n-1] != latest {
			b.Assignments = append(b.Assignments, latest)
		}
	})
}

// Report sends the status of this replica to the leader. If to is not "", it sends the status only if the
// replica of that name leads. counts are those of the ledger, and earlier its reservations of earlier terms than the given
// one.
func (m *Member) Report(now time.Time, to string, counts Counts, earlier []wire.EarlierReservation, term int64) (out MemberOutput) {
	if m.assignment == nil || to != "" && to != m.assignment.Leader.Name {
		return out
	}
	status := &wire.Status{Nodes: counts.Nodes, Pods: counts.Pods, Expired: counts.Expired, AntiAffinityBeyondNode: counts.AntiAffinityBeyondNode, Listing: m.listing(), Config: m.config.Config}
	for _, member := range m.assignment.Members {
		if m.peers[member.Name] != nil && m.environment.Unreachable(member.Name) {
			status.Unreachable = append(status.Unreachable, member.Name)
		}
	}
	// After a change of the term, the next report carries the reservations of earlier leaders. The leader accepts them only
	// on nodes that it knows to be of this replica, so these are announced first.
	leader := m.peers[m.assignment.Leader.Name]
	announced := len(earlier) == 0 || leader != nil && leader.sentNodes
	if m.Complete() && m.assignment.Term == term && announced && !m.awaitsUnreachable(now) {
		status.Term, status.Number, status.Earlier = term, m.assignment.Number, earlier
	}
	out.send(m.assignment.Leader.Name, func(b *wire.Batch) { b.Status = status })
	return out
}

// listing returns 0 if all first lists of this replica are complete, otherwise a number that grows with their
// progress.
func (m *Member) listing() int64 {
	if nodes, pods := m.environment.Listed(); nodes && pods {
		return 0
	}
	return 1 + m.environment.Progress()
}

// Peer is a replica to which this replica sends messages: another one or itself.
type Peer struct {
	address string
	// greeted is the number of the last connection on which the leader's state was sent. sentNodes is true after this
	// replica has announced its nodes to the peer.
	greeted   int64
	sentNodes bool
	// connection is the number of the connection to which this state belongs. listedOn is
	// the same number after this replica has sent a complete list of its pods, and 0 before.
	connection, listedOn int64
	// confirmed is the last announcement that the peer has confirmed (see [wire.Batch.Confirmed]).
	confirmed int64
	// sentListed is the stamp of the assignment for which this replica has last sent Listed (see
	// wire.Batch) to the peer, and listedID is the ID of that message. unlisted has the starts of the
	// lists that no such message has covered yet.
	sentListed, listedID int64
	unlisted             listStarts
	// request is the peer's latest request for the pods on its nodes. wantedNodeSlots are the hash
	// slots of the nodes whose pods the peer still needs. unsentPodSlots are the hash slots of the
	// pods that this replica watches and has not sent to the peer yet.
	request                         *wire.Refresh
	wantedNodeSlots, unsentPodSlots refresh.SlotSet
	// answeredID is the ID of the last request that this replica has answered.
	answeredID int64
	// sending is true while a list of pods is being sent on the connection.
	sending bool
	// sentPending is true after this replica has sent all pending pods to the peer, if it leads.
	sentPending bool
	// assigned is the last assignment that the peer has sent; nil if it has sent none.
	assigned *wire.Assignment
}

// listStarts are the starts of lists of nodes, by hash slot (see [wire.Refresh.Since]); 0 for other hash slots.
type listStarts [membership.SlotCount]int64

// startLists returns that lists of all slots start now.
func (m *Member) startLists() (starts listStarts) {
	m.lastID++
	for slot := range starts {
		starts[slot] = m.lastID
	}
	return starts
}

// connect makes the given replicas the peers.
func (m *Member) connect(members []membership.Member, out *MemberOutput) {
	names := sets.New[string]()
	for _, member := range members {
		names.Insert(member.Name)
		p := m.peers[member.Name]
		if p != nil && p.address == member.Address {
			continue
		}
		request := m.earlyRequests[member.Name]
		if p != nil {
			out.Disconnect = append(out.Disconnect, member.Name)
			request = p.request
		}
		m.peers[member.Name] = &Peer{
			address: member.Address, request: request, wantedNodeSlots: refresh.AllSlots(), unsentPodSlots: refresh.AllSlots(), unlisted: m.startLists(),
		}
		out.Connect = append(out.Connect, member)
	}
	for name := range m.peers {
		if !names.Has(name) {
			delete(m.peers, name)
			out.Disconnect = append(out.Disconnect, name)
		}
	}
	m.peerNames, out.Peers = senders(m.peers), members
	maps.DeleteFunc(m.earlyRequests, func(name string, request *wire.Refresh) bool {
		return names.Has(name) || stamp(request.Term, request.Number) < m.currentStamp()
	})
}

// PeerConnected starts a new connection to a peer with the given number, which gets the whole state again. The caller then
//
//  1. sends the state of the leader (see [Leader.Greeting]) and calls [Member.Greeted],
//  2. calls [Member.AnnounceTo] for each node that this replica watches, and then [Member.AllAnnounced],
//  3. calls [Member.SendDue] and [Member.Report].
func (m *Member) PeerConnected(name string, connection int64) {
	p := m.peers[name]
	if p == nil {
		return
	}
	p.sentListed, p.answeredID, p.sentPending, p.sentNodes, p.greeted = 0, 0, false, false, 0
	p.connection, p.listedOn, p.sending = connection, 0, false
	p.unlisted, p.unsentPodSlots, p.wantedNodeSlots = m.startLists(), refresh.AllSlots(), refresh.AllSlots()
}

// Greeted records that the state of the leader was sent on the connection to a peer.
func (m *Member) Greeted(name string) (out MemberOutput) {
	if p := m.peers[name]; p != nil {
		p.greeted = p.connection
		m.sendNewer(name, p.assigned, &out)
	}
	return out
}

// IsGreeted returns whether the leader's state was sent on a connection to a peer.
func (m *Member) IsGreeted(name string, connection int64) bool {
	p := m.peers[name]
	return p != nil && connection != 0 && connection == p.greeted
}

// AnnounceTo announces a node on a new connection. A later list of its slot would announce the node again, with a higher
// number.
func (m *Member) AnnounceTo(name string, node *v1.Node) (out MemberOutput) {
	item := nodeName(node, m.lastID)
	out.send(name, func(b *wire.Batch) { b.Nodes = append(b.Nodes, item) })
	return out
}

// AllAnnounced records that all nodes were announced on a new connection to a peer.
func (m *Member) AllAnnounced(name string) (out MemberOutput) {
	p := m.peers[name]
	if p == nil {
		return out
	}
	p.sentNodes = true
	announcement := m.lastID
	out.sendOn(name, p.connection, func(b *wire.Batch) { b.Announced = announcement })
	return out
}
