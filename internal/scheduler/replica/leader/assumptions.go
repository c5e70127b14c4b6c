package leader

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	schedcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// Assumptions replaces kube-scheduler's cache in a leader. It contains only the pods that the leader has
// placed and that no watch has shown as bound. The owners of nodes keep nodes and bound pods.
type Assumptions struct {
	// Upstream's cache keeps pod groups and forwards binds to the API dispatcher.
	schedcache.Cache

	search *Search
	// leader sends reservations to the owners of nodes.
	leader *Leader

	// binding is the number of binds in progress.
	binding atomic.Int64

	mu      sync.Mutex
	assumed map[types.UID]*assumption
	// lastAttempt is the number of the last assumption.
	lastAttempt uint64
	// uids are the UIDs of the assumed pods, by namespace and name.
	uids map[toolscache.ObjectName]types.UID
}

// assumption is a pod that is assumed to be on a node.
type assumption struct {
	pod *v1.Pod
	// attempt distinguishes this placement of the pod from earlier ones, whose answers may arrive late.
	attempt  uint64
	termKeys wire.TermKeys
	// acked is closed when the owner of the node has answered. refusal is the reason for which the
	// owner did not reserve capacity, or has released it; "" if it has reserved capacity. lastAck is
	// the time of its last answer, or of the placement before the first answer.
	acked   chan struct{}
	refusal string
	lastAck time.Time
	// sent is true if a bind has passed the guard. unanswered is true if its answer does not say whether it was executed.
	sent, unanswered bool
}

// Times of reservations.
const (
	// ackTimeout is the time within which the owner of a node must answer a reservation.
	ackTimeout = 10 * time.Second
	// boundTimeout is the time for which a leader that exits waits until watches have shown its
	// pods as bound. It is longer than the usual delay of a watch plus the delay of messages that
	// are not urgent (wire.Link), and shorter than leaveTimeout of package app.
	boundTimeout = 600 * time.Millisecond
	// maxAckAge is the maximal age of the owner's last answer when the pod is bound. It is shorter
	// than the life of a reservation, so the owner cannot have released the reservation.
	maxAckAge = 15 * time.Second
)

// errNotSent is the error of a bind that the guard has stopped.
var errNotSent = errors.New("the bind was not sent")

var errReservationLost = errors.New("the pod lost its reservation before it was bound")

// newAssumptions returns a cache that wraps upstream's cache.
func newAssumptions(inner schedcache.Cache, search *Search, l *Leader) *Assumptions {
	return &Assumptions{
		Cache: inner, search: search, leader: l, assumed: map[types.UID]*assumption{}, uids: map[toolscache.ObjectName]types.UID{},
		// Start from the time, because the answer to a request of an earlier process may arrive.
		lastAttempt: uint64(time.Now().UnixNano()),
	}
}

// AssumePod records a pod as placed and requests a reservation from the owner of its node.
func (a *Assumptions) AssumePod(_ klog.Logger, pod *v1.Pod) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.assumed[pod.UID] != nil {
		return fmt.Errorf("pod %v(%v) is in the cache, so can't be assumed", pod.UID, klog.KObj(pod))
	}
	termKeys := a.search.Placed(pod.UID)
	a.lastAttempt++
	assumed := &assumption{pod: pod, attempt: a.lastAttempt, termKeys: termKeys, acked: make(chan struct{}), lastAck: time.Now()}
	a.assumed[pod.UID] = assumed
	a.uids[toolscache.MetaObjectToName(pod)] = pod.UID
	a.leader.reserve(assumed)
	return nil
}

// remove removes an assumed pod. The caller holds the lock.
func (a *Assumptions) remove(pod *v1.Pod) {
	delete(a.assumed, pod.UID)
	if name := toolscache.MetaObjectToName(pod); a.uids[name] == pod.UID {
		delete(a.uids, name)
	}
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
		a.remove(assumed.pod)
		if assumed.unanswered {
			a.leader.keepUnanswered(assumed)
		} else {
			a.leader.release(assumed.pod)
		}
	}
	return nil
}

// AddPod confirms that a pod is bound. The owner of the node receives the pod from the replica that
// watches it.
func (a *Assumptions) AddPod(_ klog.Logger, pod *v1.Pod) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if node := a.leader.Earlier(pod.UID); node != pod.Spec.NodeName {
		a.leader.releaseEarlier(pod.UID)
	}
	a.leader.settleBound(pod.UID)
	if assumed := a.assumed[pod.UID]; assumed != nil {
		a.remove(assumed.pod)
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
	err := a.RemoveAssumedPod(logger, pod)
	a.leader.settleDeleted(pod.UID)
	return err
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

// IsAssumedPod returns whether a pod is assumed and not known to be bound.
func (a *Assumptions) IsAssumedPod(pod *v1.Pod) (bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.assumed[pod.UID] != nil, nil
}

// AddNode does nothing: the owners of nodes keep them.
func (*Assumptions) AddNode(klog.Logger, *v1.Node) {}

// UpdateNode does nothing: the owners of nodes keep them.
func (*Assumptions) UpdateNode(klog.Logger, *v1.Node, *v1.Node) {}

// RemoveNode does nothing: the owners of nodes keep them.
func (*Assumptions) RemoveNode(klog.Logger, *v1.Node) error { return nil }

// NodeCount returns the total number of nodes in the last status reports of the owners.
func (a *Assumptions) NodeCount() int { return a.leader.Nodes() }

// PodCount returns the number of assumed pods.
func (a *Assumptions) PodCount() (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.assumed), nil
}

// GetNode returns an error: the owners of nodes keep them.
func (*Assumptions) GetNode(name string) (*framework.NodeInfo, error) {
	return nil, fmt.Errorf("node %v is not in the leader's cache: only the replica that owns the node has it", name)
}

// UpdateSnapshot starts a scheduling cycle. It writes no nodes into the snapshot.
func (a *Assumptions) UpdateSnapshot(logger klog.Logger, _ *schedcache.Snapshot) error {
	a.search.Cluster.Apply(logger, nil)
	return nil
}

// Dump returns the UIDs of the assumed pods, for debugging.
func (a *Assumptions) Dump() *schedcache.Dump {
	a.mu.Lock()
	defer a.mu.Unlock()
	assumed := sets.New[string]()
	for uid := range a.assumed {
		assumed.Insert(string(uid))
	}
	return &schedcache.Dump{AssumedPods: assumed, Nodes: map[string]*framework.NodeInfo{}}
}

// ack records the answer of a replica to a reservation, or to its renewal, if it is for the current placement of the pod and
// owns returns true for the node. A late answer for an earlier placement says nothing about the current one. ack calls owns with the lock held, because [Leader.resendReservations] reads the assumptions under
// the same lock: an answer counts either before the reservations are sent to a new owner, or not at all.
func (a *Assumptions) ack(answer wire.Ack, owns func(node string) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	assumed := a.assumed[answer.UID]
	if assumed == nil || assumed.attempt != answer.Attempt || !owns(assumed.pod.Spec.NodeName) {
		return
	}
	assumed.lastAck, assumed.refusal = time.Now(), answer.Refused
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
func (a *assumption) reserved() bool { return a.isAcked() && a.refusal == "" }

// each calls a function with each assumption and holds the lock meanwhile.
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

// AwaitBinds waits until no bind is in progress, or until the context ends.
func (a *Assumptions) AwaitBinds(ctx context.Context) {
	a.await(ctx, func() bool { return a.binding.Load() == 0 })
}

// AwaitBound waits up to boundTimeout until watches have shown all placed pods as bound. The next
// leader would treat a pod that is not shown as bound as pending and place it again, and until then the
// pod's requests would count on two nodes.
func (a *Assumptions) AwaitBound(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, boundTimeout)
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

// confirmed waits until the owner of the node has reserved capacity for a pod. It returns an error if
// the reservation is not or no longer valid.
func (a *Assumptions) confirmed(ctx context.Context, uid types.UID) error {
	a.mu.Lock()
	assumed := a.assumed[uid]
	a.mu.Unlock()
	if assumed == nil {
		return errReservationLost
	}
	timeout := time.NewTimer(ackTimeout)
	defer timeout.Stop()
	select {
	case <-assumed.acked:
	case <-ctx.Done():
		return ctx.Err()
	case <-timeout.C:
		return fmt.Errorf("the replica that owns node %s did not answer within %v", assumed.pod.Spec.NodeName, ackTimeout)
	}
	return a.valid(uid, assumed)
}

// MayBind returns nil if the reservation of a pod is valid now.
func (a *Assumptions) MayBind(pod toolscache.ObjectName) error {
	a.mu.Lock()
	uid := a.uids[pod]
	assumed := a.assumed[uid]
	a.mu.Unlock()
	if assumed == nil || !assumed.isAcked() {
		return errReservationLost
	}
	err := a.valid(uid, assumed)
	a.mu.Lock()
	defer a.mu.Unlock()
	assumed.sent = assumed.sent || err == nil
	return err
}

// valid returns nil if this replica leads and an acknowledged reservation is valid. The age of the
// acknowledgement is not sufficient: this replica may own the node, and a process that was suspended renews its
// own reservations before it learns that another replica leads.
func (a *Assumptions) valid(uid types.UID, assumed *assumption) error {
	if !a.leader.leads() {
		return errors.New("another replica has become the leader")
	}
	if err := a.leader.options.Tenure.Check(); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.assumed[uid] != assumed:
		return errReservationLost
	case assumed.refusal != "":
		return fmt.Errorf("the replica that owns node %s: %s", assumed.pod.Spec.NodeName, assumed.refusal)
	case time.Since(assumed.lastAck) > maxAckAge:
		return fmt.Errorf("the replica that owns node %s has not answered for %v", assumed.pod.Spec.NodeName, time.Since(assumed.lastAck).Round(time.Second))
	}
	return nil
}

// ConfirmReservation waits until the owner of the node has reserved capacity for a pod. If the owner
// refuses or does not answer, the pod is retried as soon as all owners answer.
func (a *Assumptions) ConfirmReservation(ctx context.Context, pod *v1.Pod) error {
	err := a.confirmed(ctx, pod.UID)
	if err != nil {
		a.leader.RetryWhenAllAnswer(pod)
	}
	return err
}

// Bind calls a function that binds a pod, if the reservation is still valid. The check is repeated here
// because this process may have been suspended after [Assumptions.ConfirmReservation]. [BindGuard] repeats it
// once more after the rate limiter of the client.
func (a *Assumptions) Bind(ctx context.Context, pod *v1.Pod, bind func() *fwk.Status) *fwk.Status {
	a.binding.Add(1)
	defer a.binding.Add(-1)
	if err := a.confirmed(ctx, pod.UID); err != nil {
		return fwk.AsStatus(err)
	}
	status := bind()
	if status.IsSuccess() {
		return status
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if assumed := a.assumed[pod.UID]; assumed != nil {
		assumed.unanswered = isUnanswered(status.AsError(), assumed.sent)
	}
	return status
}

// isUnanswered returns whether the API server may have executed a bind that failed with this error. sent is true if it has
// passed the guard: client-go sends it once more if the API server asks for that (Retry-After), and the guard may stop the
// second one. A conflict may be that with the first one, or an error of the store, for which the API server does not say
// whether it has written (assignPod in pkg/registry/core/pod/storage).
func isUnanswered(err error, sent bool) bool {
	if errors.Is(err, errNotSent) {
		return sent
	}
	var answer apierrors.APIStatus
	if errors.As(err, &answer) {
		code := answer.Status().Code
		return code >= http.StatusInternalServerError || code == http.StatusConflict
	}
	return true
}
