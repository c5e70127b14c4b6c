package leader

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	schedcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// Assumptions replaces kube-scheduler's cache in a leader. The owners of nodes keep nodes and bound
// pods; this cache has only the pods that are placed and not known to be bound.
type Assumptions struct {
	// Upstream's cache keeps pod groups and forwards binds to the API dispatcher.
	schedcache.Cache

	search *Search
	// leader sends reservations to the owners of nodes.
	leader *Leader

	// binding counts the binds that are under way.
	binding atomic.Int64

	mu      sync.Mutex
	assumed map[types.UID]*assumption
}

// assumption is a pod that is assumed to be on a node.
type assumption struct {
	pod      *v1.Pod
	termKeys wire.TermKeys
	// acked is closed when the owner of the node has answered. refused is why it did not reserve
	// capacity, or released it; lastHeard is when it last answered.
	acked     chan struct{}
	refused   string
	lastHeard time.Time
}

// Times of reservations.
const (
	// ackTimeout is the time for the owner of a node to answer a reservation.
	ackTimeout = 10 * time.Second
	// Longer than replicas delay messages that are not urgent (wire.Link) and watches take to
	// deliver, and less than the time to exit (leavePatience of the app package).
	seenTimeout = 600 * time.Millisecond
	// maxUnheard is how old the last answer of an owner may be when its pod is bound. An owner may
	// have released a reservation that it was not asked to renew for longer.
	maxUnheard = 15 * time.Second
)

var errLost = errors.New("the pod lost its reservation before it was bound")

// newAssumptions makes a cache in front of upstream's.
func newAssumptions(inner schedcache.Cache, search *Search, l *Leader) *Assumptions {
	return &Assumptions{Cache: inner, search: search, leader: l, assumed: map[types.UID]*assumption{}}
}

// AssumePod records a pod as placed and requests a reservation from the owner of its node.
func (a *Assumptions) AssumePod(_ klog.Logger, pod *v1.Pod) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.assumed[pod.UID] != nil {
		return fmt.Errorf("pod %v(%v) is in the cache, so can't be assumed", pod.UID, klog.KObj(pod))
	}
	termKeys := a.search.Placed(pod.UID)
	a.assumed[pod.UID] = &assumption{pod: pod, termKeys: termKeys, acked: make(chan struct{}), lastHeard: time.Now()}
	a.leader.reserve(pod, termKeys)
	return nil
}

// ForgetPod undoes [Assumptions.AssumePod].
func (a *Assumptions) ForgetPod(logger klog.Logger, pod *v1.Pod) error {
	return a.RemoveAssumedPod(logger, pod)
}

// RemoveAssumedPod removes an assumed pod and releases its reservation.
func (a *Assumptions) RemoveAssumedPod(_ klog.Logger, pod *v1.Pod) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if assumed := a.assumed[pod.UID]; assumed != nil {
		delete(a.assumed, pod.UID)
		a.leader.release(assumed.pod)
	}
	return nil
}

// AddPod confirms that a pod is bound. The owner of the node receives the pod from the replica that
// watches it.
func (a *Assumptions) AddPod(_ klog.Logger, pod *v1.Pod) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if assumed := a.assumed[pod.UID]; assumed != nil {
		delete(a.assumed, pod.UID)
		if assumed.pod.Spec.NodeName != pod.Spec.NodeName {
			a.leader.release(assumed.pod)
		}
	}
	return nil
}

// UpdatePod does nothing: the owners of nodes keep bound pods.
func (a *Assumptions) UpdatePod(klog.Logger, *v1.Pod, *v1.Pod) error { return nil }

// RemovePod releases the reservation of a pod that was deleted before it was known to be bound.
func (a *Assumptions) RemovePod(logger klog.Logger, pod *v1.Pod) error {
	return a.RemoveAssumedPod(logger, pod)
}

// GetPod returns an assumed pod.
func (a *Assumptions) GetPod(pod *v1.Pod) (*v1.Pod, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if assumed := a.assumed[pod.UID]; assumed != nil {
		return assumed.pod, nil
	}
	return nil, fmt.Errorf("pod %v(%v) does not exist in scheduler cache", pod.UID, klog.KObj(pod))
}

// IsAssumedPod returns whether a pod is assumed and not confirmed.
func (a *Assumptions) IsAssumedPod(pod *v1.Pod) (bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.assumed[pod.UID] != nil, nil
}

// AddNode does nothing: nodes are with their owners.
func (*Assumptions) AddNode(klog.Logger, *v1.Node) {}

// UpdateNode does nothing: nodes are with their owners.
func (*Assumptions) UpdateNode(klog.Logger, *v1.Node, *v1.Node) {}

// RemoveNode does nothing: nodes are with their owners.
func (*Assumptions) RemoveNode(klog.Logger, *v1.Node) error { return nil }

// NodeCount returns the number of nodes that replicas last reported.
func (a *Assumptions) NodeCount() int { return a.leader.Nodes() }

// PodCount returns the number of assumed pods.
func (a *Assumptions) PodCount() (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.assumed), nil
}

// GetNode returns an error: nodes are with their owners.
func (*Assumptions) GetNode(name string) (*framework.NodeInfo, error) {
	return nil, fmt.Errorf("node %v is not in this cache: the replica that owns it has it", name)
}

// UpdateSnapshot starts a scheduling cycle.
func (a *Assumptions) UpdateSnapshot(logger klog.Logger, _ *schedcache.Snapshot) error {
	a.search.Cluster.Apply(logger, nil)
	return nil
}

// Dump copies the assumed pods for debugging.
func (a *Assumptions) Dump() *schedcache.Dump {
	a.mu.Lock()
	defer a.mu.Unlock()
	assumed := sets.New[string]()
	for uid := range a.assumed {
		assumed.Insert(string(uid))
	}
	return &schedcache.Dump{AssumedPods: assumed, Nodes: map[string]*framework.NodeInfo{}}
}

// ack takes the answer of a node's owner about a pod.
func (a *Assumptions) ack(uid types.UID, refused string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	assumed := a.assumed[uid]
	if assumed == nil {
		return
	}
	assumed.lastHeard, assumed.refused = time.Now(), refused
	if !assumed.isAcked() {
		close(assumed.acked)
	}
}

func (a *assumption) isAcked() bool {
	select {
	case <-a.acked:
		return true
	default:
		return false
	}
}

// reserved returns whether the owner of the node has reserved capacity for the pod.
func (a *assumption) reserved() bool { return a.isAcked() && a.refused == "" }

// each calls a function with each assumption, under the lock.
func (a *Assumptions) each(f func(*assumption)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, assumed := range a.assumed {
		f(assumed)
	}
}

// nodeOf returns the node of an assumed pod; "" for other pods.
func (a *Assumptions) nodeOf(uid types.UID) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if assumed := a.assumed[uid]; assumed != nil {
		return assumed.pod.Spec.NodeName
	}
	return ""
}

// AwaitBinds waits until no bind is under way.
func (a *Assumptions) AwaitBinds(ctx context.Context) {
	a.await(ctx, func() bool { return a.binding.Load() == 0 })
}

// AwaitSeen waits, for a limited time, until the watches have shown all pods on their nodes. The
// next leader would take a pod that its watch has not shown yet for pending, and count it twice
// while it places the pod again.
func (a *Assumptions) AwaitSeen(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, seenTimeout)
	defer cancel()
	a.await(ctx, func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.assumed) == 0
	})
}

func (a *Assumptions) await(ctx context.Context, done func() bool) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// confirmed waits until the owner of the node has reserved capacity for a pod.
func (a *Assumptions) confirmed(ctx context.Context, uid types.UID) error {
	a.mu.Lock()
	assumed := a.assumed[uid]
	a.mu.Unlock()
	if assumed == nil {
		return errLost
	}
	patience := time.NewTimer(ackTimeout)
	defer patience.Stop()
	select {
	case <-assumed.acked:
	case <-ctx.Done():
		return ctx.Err()
	case <-patience.C:
		return fmt.Errorf("the replica that owns node %s did not answer within %v", assumed.pod.Spec.NodeName, ackTimeout)
	}
	if !a.leader.leads() {
		return errors.New("another replica has become the leader")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.assumed[uid] != assumed:
		return errLost
	case assumed.refused != "":
		return fmt.Errorf("the replica that owns node %s: %s", assumed.pod.Spec.NodeName, assumed.refused)
	case time.Since(assumed.lastHeard) > maxUnheard:
		return fmt.Errorf("the replica that owns node %s has not answered for %v", assumed.pod.Spec.NodeName, time.Since(assumed.lastHeard).Round(time.Second))
	}
	return nil
}

// ConfirmReservation waits until the owner of the node has reserved the capacity for a pod. A
// pod that it refuses or does not answer for is tried again as soon as all owners answer.
func (a *Assumptions) ConfirmReservation(ctx context.Context, pod *v1.Pod) error {
	err := a.confirmed(ctx, pod.UID)
	if err != nil {
		a.leader.Delay(pod)
	}
	return err
}

// Bind calls a function that binds a pod, if the reservation is still valid: this process may
// have been stopped since it was confirmed.
func (a *Assumptions) Bind(ctx context.Context, pod *v1.Pod, bind func() *fwk.Status) *fwk.Status {
	a.binding.Add(1)
	defer a.binding.Add(-1)
	if err := a.confirmed(ctx, pod.UID); err != nil {
		return fwk.AsStatus(err)
	}
	return bind()
}
