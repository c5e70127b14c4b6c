// Package member is the part of a replica that follows the assignment of hash slots. It watches the
// objects in the slots of this replica and exchanges messages with the other replicas. What it sends, and when it is
// ready, is decided by [core.Member].
package member

import (
	"context"
	"net"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/core"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/holder"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// Member watches the nodes and pods in the hash slots of a replica. It knows which replica owns which
// node. It sends bound pods to the owners of their nodes, and pending pods to the leader.
type Member struct {
	options Options
	logger  klog.Logger
	ctx     context.Context
	client  kubernetes.Interface
	// watching is the client of the watches.
	watching kubernetes.Interface
	dial     *wire.Dialer
	holder   *holder.Holder
	hooks    Hooks
	pods     *slotWatcher[*v1.Pod]
	nodes    *slotWatcher[*v1.Node]

	mu    sync.Mutex
	core  *core.Member
	links map[string]*link
	// released is closed when a new node can be used; nil if nobody waits for that.
	released chan struct{}

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
		links: map[string]*link{},
	}
	m.core = core.NewMember(core.MemberConfig{
		Self: options.Self.Name, Elected: options.Elected, Config: options.Config,
		// Start from the time, so that a restarted replica does not reuse IDs.
		FirstID: time.Now().UnixNano(),
	}, (*environment)(m))
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

// do makes a call of the protocol at the current time, and carries its output out. The caller must not hold the lock of
// the watched pods if the output may have pods to send again.
func (m *Member) do(call func(c *core.Member, now time.Time) core.MemberOutput) {
	m.mu.Lock()
	out := call(m.core, time.Now())
	lists := m.send(&out)
	m.mu.Unlock()
	m.finish(&out, lists)
}

// send carries out the part of an output that must not be delayed: until it returns, no other call is made. It does not
// block. It returns the lists that [Member.finish] starts. The caller holds the lock.
func (m *Member) send(out *core.MemberOutput) (lists []*listSender) {
	for _, name := range out.Disconnect {
		if l := m.links[name]; l != nil {
			l.stop()
			delete(m.links, name)
		}
	}
	for _, member := range out.Connect {
		m.connect(member)
	}
	if out.Peers != nil {
		m.dial.Keep(out.Peers)
	}
	for _, message := range out.Messages {
		if message.To == "" {
			for _, l := range m.links {
				l.send(message)
			}
		} else if l := m.links[message.To]; l != nil {
			l.send(message)
		}
	}
	if out.Released && m.released != nil {
		close(m.released)
		m.released = nil
	}
	for _, list := range out.Lists {
		if l := m.links[list.To]; l != nil {
			lists = append(lists, &listSender{m: m, list: list, link: l.Link, ctx: l.ctx})
		}
	}
	return lists
}

// finish carries out the rest of an output.
func (m *Member) finish(out *core.MemberOutput, lists []*listSender) {
	for _, list := range lists {
		go list.run()
	}
	if out.DropPods {
		m.holder.DropNodes(nil, m.ownsNode)
	}
	resend := out.Resend
	if len(out.ResendOn) > 0 {
		resend = append(resend, m.podsOnNodes(out.ResendOn)...)
	}
	for _, uid := range resend {
		m.pods.visit(uid, func(pod *v1.Pod) {
			m.do(func(c *core.Member, now time.Time) core.MemberOutput { return c.Pod(now, pod) })
		})
	}
	if len(out.Senders) > 0 {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.core.Settle(out.Senders)
	}
}

// podsOnNodes returns the pods that this replica watches on the given nodes, which are identified by the
// hash of their name.
func (m *Member) podsOnNodes(nodes map[uint64]bool) []types.UID {
	var found []types.UID
	for _, uid := range m.pods.uids() {
		m.pods.visit(uid, func(pod *v1.Pod) {
			if pod.Spec.NodeName != "" && nodes[core.HashOf(pod.Spec.NodeName)] {
				found = append(found, uid)
			}
		})
	}
	return found
}

// environment is a member as the [core.Environment] of its state. The caller holds the lock.
type environment Member

// Listed implements [core.Environment].
func (m *environment) Listed() (nodes, pods bool) { return m.nodes.synced.Load(), m.pods.synced.Load() }

// Progress implements [core.Environment].
func (m *environment) Progress() int64 { return m.nodes.progress.Load() + m.pods.progress.Load() }

// Unreachable implements [core.Environment].
func (m *environment) Unreachable(name string) bool {
	l := m.links[name]
	return l != nil && l.unreachable()
}

// Self returns the name of this replica.
func (m *Member) Self() string { return m.options.Self.Name }

// Assignment returns the assignment of hash slots that this replica follows; nil before the
// first.
func (m *Member) Assignment() *wire.Assignment {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.core.Assignment()
}

// Table returns a copy of the owners of all hash slots.
func (m *Member) Table() membership.Table {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.core.Table()
}

// Ready returns whether this replica follows the given assignment and has loaded all nodes and pods that
// belong to it.
func (m *Member) Ready(term, number int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.core.Ready(term, number)
}

// NodeOwner returns the name of the replica that owns a node; "" if it is unknown.
func (m *Member) NodeOwner(node string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.core.NodeOwner(node)
}

// ownsNode returns whether this replica owns a node (see [core.Member.OwnsNode]).
func (m *Member) ownsNode(node string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.core.OwnsNode(node)
}

// Trusts returns whether a replica watches an object according to the current assignment (see [core.Member.Trusts]).
func (m *Member) Trusts(from string, uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.core.Trusts(from, uid)
}

// SlotsOf returns those of the given slots that a replica owns.
func (m *Member) SlotsOf(owner string, slots []int) []int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.core.SlotsOf(owner, slots)
}
