// Package member is the part of a replica that keeps its share of the cluster: membership,
// ownership of hash slots, the watches of those slots, and the messages to other replicas that
// follow from them.
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

// Member is the part of a replica that keeps its share of the cluster: it watches the nodes and
// pods in its hash slots, knows which replica owns which node, and sends pods to the owners of
// their nodes and to the leader.
type Member struct {
	options Options
	logger  klog.Logger
	client  kubernetes.Interface
	dial    *wire.Dialer
	holder  *holder.Holder
	hooks   Hooks
	pods    *slotWatcher[*v1.Pod]
	nodes   *slotWatcher[*v1.Node]

	mu         sync.Mutex
	ctx        context.Context
	assignment *wire.Assignment
	table      membership.Table
	// settled is the stamp of the assignment by which hash slots are watched here.
	settled int64
	peers   map[string]*peer
	// earlyRequests are the requests of replicas that are not known here yet, by name.
	earlyRequests map[string]*wire.Refresh
	// slots are the hash slots of nodes, by the hash of the node's name.
	slots map[uint64]nodeSlot
	// lastID is the ID of the last request or list that was sent.
	lastID int64
	// podsOfUnknownNodes are pods on nodes that no replica has announced, by node name.
	podsOfUnknownNodes map[string]sets.Set[types.UID]
	// refreshed are the replicas that have sent all pods on the nodes here, for the current
	// assignment.
	refreshed sets.Set[string]

	// adopting is held while an assignment is adopted, one after the other.
	adopting sync.Mutex
}

// Hooks are what a member needs of the rest of its replica. They are called only after the
// replica is complete.
type Hooks struct {
	// Handler receives what this replica sends to itself.
	Handler wire.Handler
	// Term returns the term that this replica leads for; 0 while another leads.
	Term func() int64
	// Greet sends the leader's state to a peer that has just connected.
	Greet func(*wire.Link)
	// Assumed returns the number of pods that this replica assumes as the leader.
	Assumed func() int
	// Exit ends the process.
	Exit func(err error, why string)
}

// New makes a member. It watches nodes and pods by a client of its own.
func New(
	ctx context.Context, options Options, dial *wire.Dialer, watching, client kubernetes.Interface, h *holder.Holder, hooks Hooks,
) *Member {
	m := &Member{
		options: options, logger: klog.FromContext(ctx), ctx: ctx, client: client, dial: dial, holder: h, hooks: hooks,
		// A replica that returns under its name does not reuse numbers.
		lastID: time.Now().UnixNano(),
		peers:  map[string]*peer{}, slots: map[uint64]nodeSlot{}, earlyRequests: map[string]*wire.Refresh{},
		podsOfUnknownNodes: map[string]sets.Set[types.UID]{}, refreshed: sets.New[string](),
	}
	trimmer := cache.NewTrimmer()
	m.pods = newSlotWatcher(&v1.Pod{}, podWatch(watching), trimmer.Transform, m.podChanged, m.sendDueAndReport)
	m.nodes = newSlotWatcher(&v1.Node{}, nodeWatch(watching), trimmer.Transform, m.nodeChanged, m.sendDueAndReport)
	return m
}

// nodeSlot is the hash slot of a node, and when the node was created, in Unix seconds.
type nodeSlot struct {
	slot    int16
	created int64
}

// Options configure a replica.
type Options struct {
	// Self is this replica.
	Self membership.Member
	// Listener accepts connections of other replicas.
	Listener  net.Listener
	TLS       *wire.TLS
	Discovery membership.Discovery
	// Fanout is how many replicas one replica sends a query to.
	Fanout   int
	Patience wire.Patience
	// Config is a digest of the configuration that all replicas have to share.
	Config string
	// Elected is set if a lease elects the leader. Then a leader exits when another replica leads
	// for a later term; otherwise it follows that replica.
	Elected bool
	// Resign exits this process in an orderly way, so that another replica leads; nil if no other
	// would.
	Resign func()
}

// hashOf returns the hash of a node's name.
func hashOf(node string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(node))
	return h.Sum64()
}

// stamp returns a number that orders the assignments of all leaders.
func stamp(term, number int64) int64 { return term<<24 | number }

// current returns the stamp of the present assignment.
func (m *Member) current() int64 {
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

// Ready returns whether this replica has all that it needs to answer by an assignment.
func (m *Member) Ready(term, number int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.complete() && m.current() == stamp(term, number)
}

// NodeOwner returns the name of the replica that owns a node; "" if none is known.
func (m *Member) NodeOwner(node string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ownerOf(node)
}

// ownerOf returns the owner of a node; "" if it is unknown. The caller holds the lock.
func (m *Member) ownerOf(node string) string {
	at, known := m.slots[hashOf(node)]
	if !known || m.table == nil {
		return ""
	}
	return m.table[at.slot]
}

// slotOwner returns the replica that watches an object; "" if it is unknown. The caller holds the
// lock.
func (m *Member) slotOwner(uid types.UID) string {
	if m.table == nil {
		return ""
	}
	return m.table[membership.SlotOf(uid)]
}

// Trusts returns whether a replica watches an object according to the present assignment. A replica
// that was stopped may not know that another watches the object now. Before the first assignment
// nothing is trusted: messages may be for an earlier process with this name.
func (m *Member) Trusts(from string, uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return from != "" && m.slotOwner(uid) == from
}
