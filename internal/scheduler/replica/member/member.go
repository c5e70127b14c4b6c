// Package member is the part of a replica that follows the assignment of hash slots. It watches the
// objects in the slots of this replica and exchanges messages with the other replicas.
package member

import (
	"context"
	"hash/fnv"
	"net"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/holder"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// Member watches the nodes and pods in the hash slots of a replica. It knows which replica owns which
// node. It sends bound pods to the owners of their nodes, and pending pods to the leader.
type Member struct {
	options Options
	logger  klog.Logger
	client  kubernetes.Interface
	// watching is the client of the watches.
	watching kubernetes.Interface
	dial     *wire.Dialer
	holder   *holder.Holder
	hooks    Hooks
	pods     *slotWatcher[*v1.Pod]
	nodes    *slotWatcher[*v1.Node]

	mu         sync.Mutex
	ctx        context.Context
	assignment *wire.Assignment
	table      membership.Table
	// appliedStamp is the stamp of the last assignment that [Member.Adopt] has completely applied.
	appliedStamp int64
	// checkedStamp is the stamp of the last assignment after which the API server has answered on the connection of the
	// watches (see [Member.checkWatches]).
	checkedStamp int64
	peers        map[string]*peer
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
	// waiting are the announcements that this replica does not use yet, by sender.
	// settling are the senders of announcements that did wait, until the pods and reservations on their nodes were sent
	// and the announcements confirmed. settled are those that [Member.TakeSettled] returns next.
	waiting  map[string]*waitingNodes
	settling map[string]int
	settled  []string
	// connections are the numbers of connections from each replica. unchecked are the reports that a replica has announced
	// all its nodes, as far as they were not compared with slots yet.
	connections map[string]int32
	unchecked   map[string]*listedNodes
	// announced is the last announcement of each replica on its current connection (see [wire.Batch.Announced]).
	announced map[string]int64
	// watched are the numbers of nodes that this replica watches, by the hash of their name. A node may have been created
	// again in another hash slot whose watch is ahead.
	watched map[uint64]int32
	// held are the new nodes of this replica that the holder does not have yet.
	held heldNodes
	// lastID is the ID of the last request, list or announcement that this replica has sent.
	lastID int64
	// podsOfUnknownNodes are the pods that this replica watches on nodes that no replica has
	// announced, by node name.
	podsOfUnknownNodes map[string]sets.Set[types.UID]
	// refreshed are the replicas that have sent all pods on this replica's nodes for the current
	// assignment.
	refreshed sets.Set[string]

	// adopting serializes calls of Adopt.
	adopting sync.Mutex
}

// Hooks are the functions of the other parts of its replica that a member calls. It calls them only
// after all parts of the replica are built.
type Hooks struct {
	// Handler receives the messages that this replica sends to itself.
	Handler wire.Handler
	// Term returns the term for which this replica leads; 0 while another replica leads.
	Term func() int64
	// Greet sends the leader's state over a new connection to a peer.
	Greet func(*wire.Link)
	// Settle confirms the announcements of nodes that do not wait any more (see [Member.TakeSettled]).
	Settle func()
	// Assumed returns the number of pods that this replica assumes as the leader.
	Assumed func() int
	// Exit logs an error and ends the process.
	Exit func(err error, why string)
}

// New returns a member. It watches nodes and pods through the client watching, and sends other requests
// through client.
func New(
	ctx context.Context, options Options, dial *wire.Dialer, watching, client kubernetes.Interface, h *holder.Holder, hooks Hooks,
) *Member {
	m := &Member{
		options: options, logger: klog.FromContext(ctx), ctx: ctx, client: client, watching: watching, dial: dial, holder: h, hooks: hooks,
		// Start from the time, so that a restarted replica does not reuse IDs.
		lastID: time.Now().UnixNano(),
		peers:  map[string]*peer{}, slots: map[uint64]nodeSlot{}, goneNodes: map[uint64]time.Time{}, connections: map[string]int32{}, unchecked: map[string]*listedNodes{}, announced: map[string]int64{}, earlyRequests: map[string]*wire.Refresh{},
		podsOfUnknownNodes: map[string]sets.Set[types.UID]{}, refreshed: sets.New[string](), watched: map[uint64]int32{},
	}
	trimmer := cache.NewTrimmer()
	m.pods = newSlotWatcher(&v1.Pod{}, podWatch(watching), trimmer.Transform, m.podChanged, m.sendDueAndReport)
	m.nodes = newSlotWatcher(&v1.Node{}, nodeWatch(watching), trimmer.Transform, m.nodeChanged, m.sendDueAndReport)
	return m
}

// Options configure a replica.
type Options struct {
	// Self is this replica.
	Self membership.Member
	// Listener accepts connections of other replicas.
	Listener  net.Listener
	TLS       *wire.TLS
	Discovery membership.Discovery
	// Election knows which replica leads for which term.
	Election membership.Election
	// Tenure is the time for which this replica may bind pods; nil without leader election.
	Tenure *membership.Tenure
	// Fanout is the maximal number of replicas to which one replica sends a query.
	Fanout int
	// Patience limits the time for which queries wait for answers.
	Patience wire.Patience
	// WaitForAll makes each query wait for the answers of all owners. If one is missing, the pod is retried
	// when all of them answer.
	WaitForAll bool
	// StallTimeout is the time after which the leader moves the hash slots of a replica whose first lists make
	// no progress; 0 means the default.
	StallTimeout time.Duration
	// Config is a digest of the configuration, which must be the same in all replicas.
	Config string
	// Elected is true if leader election is used. Then a leader exits when another replica leads for
	// a later term; otherwise it follows that replica.
	Elected bool
	// Resign makes this process exit in an orderly way, so that another replica becomes the leader;
	// nil if no other replica would.
	Resign func()
}

// hashOf returns the hash of a node's name.
func hashOf(node string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(node))
	return h.Sum64()
}

// stamp combines the term and the number of an assignment into one integer. A later assignment has a
// higher stamp.
func stamp(term, number int64) int64 { return term<<24 | number }

// currentStamp returns the stamp of the current assignment; 0 before the first. The caller holds the
// lock.
func (m *Member) currentStamp() int64 {
	if m.assignment == nil {
		return 0
	}
	return stamp(m.assignment.Term, m.assignment.Number)
}

// Self returns the name of this replica.
func (m *Member) Self() string { return m.options.Self.Name }

// Assignment returns the assignment of hash slots that this replica follows; nil before the
// first.
func (m *Member) Assignment() *wire.Assignment {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.assignment
}

// Table returns a copy of the owners of all hash slots.
func (m *Member) Table() membership.Table {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.table)
}

// Ready returns whether this replica follows the given assignment and has loaded all nodes and pods that
// belong to it.
func (m *Member) Ready(term, number int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.complete() && m.currentStamp() == stamp(term, number)
}

// NodeOwner returns the name of the replica that owns a node; "" if it is unknown.
func (m *Member) NodeOwner(node string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ownerOf(node)
}

// ownerOf returns the owner of a node; "" if it is unknown. The caller holds the lock.
func (m *Member) ownerOf(node string) string {
	announced, ok := m.slots[hashOf(node)]
	if !ok || m.table == nil {
		return ""
	}
	return m.table[announced.slot]
}

// slotOwner returns the replica that watches an object; "" if it is unknown. The caller holds the
// lock.
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
	m.mu.Lock()
	defer m.mu.Unlock()
	return from != "" && m.slotOwner(uid) == from
}
