package leader

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	schedcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/core"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// Assumptions replaces kube-scheduler's cache in a leader. It contains only the pods that the leader has
// placed and that no watch has shown as bound. The owners of nodes keep nodes and bound pods.
type Assumptions struct {
	// Upstream's cache keeps pod groups and forwards binds to the API dispatcher.
	schedcache.Cache

	search *Search
	// leader has the assumed pods.
	leader *Leader

	// binding is the number of binds in progress.
	binding atomic.Int64
}

// Times of reservations.
const (
	// ackTimeout is the time within which the owner of a node must answer a reservation.
	ackTimeout = 10 * time.Second
	// boundTimeout is the time for which a leader that exits waits until watches have shown its
	// pods as bound. It is longer than the usual delay of a watch plus the delay of messages that
	// are not urgent (wire.Link), and shorter than leaveTimeout of package app.
	boundTimeout = 600 * time.Millisecond
)

// errNotSent is the error of a bind that the guard has stopped.
var errNotSent = errors.New("the bind was not sent")

// AssumePod records a pod as placed and requests a reservation from the owner of its node.
func (a *Assumptions) AssumePod(_ klog.Logger, pod *v1.Pod) (err error) {
	a.leader.do(func(c *core.Leader, now time.Time) (out core.Output) {
		var termKeys wire.TermKeys
		if c.Assumed(pod.UID) == nil {
			termKeys = a.search.Placed(pod.UID)
		}
		out, err = c.Assume(now, pod, termKeys, a.leader.member)
		return out
	})
	return err
}

// ForgetPod undoes [Assumptions.AssumePod].
func (a *Assumptions) ForgetPod(logger klog.Logger, pod *v1.Pod) error {
	return a.RemoveAssumedPod(logger, pod)
}

// RemoveAssumedPod removes an assumed pod and releases its reservation.
func (a *Assumptions) RemoveAssumedPod(_ klog.Logger, pod *v1.Pod) error {
	a.leader.do(func(c *core.Leader, now time.Time) core.Output { return c.Forget(now, pod.UID) })
	return nil
}

// AddPod confirms that a pod is bound. The owner of the node receives the pod from the replica that
// watches it.
func (a *Assumptions) AddPod(_ klog.Logger, pod *v1.Pod) error {
	a.leader.do(func(c *core.Leader, _ time.Time) core.Output { return c.Bound(pod) })
	return nil
}

// UpdatePod does nothing: the owners of nodes keep bound pods.
func (a *Assumptions) UpdatePod(klog.Logger, *v1.Pod, *v1.Pod) error { return nil }

// RemovePod releases the reservation of a pod that was deleted before it was known to be bound.
func (a *Assumptions) RemovePod(_ klog.Logger, pod *v1.Pod) error {
	a.leader.do(func(c *core.Leader, now time.Time) core.Output { return c.Deleted(now, pod.UID) })
	return nil
}

// GetPod returns an assumed pod.
func (a *Assumptions) GetPod(pod *v1.Pod) (*v1.Pod, error) {
	a.leader.mu.Lock()
	defer a.leader.mu.Unlock()
	if assumed := a.leader.core.Assumed(pod.UID); assumed != nil {
		return assumed, nil
	}
	return nil, fmt.Errorf("pod %v(%v) does not exist in scheduler cache", pod.UID, klog.KObj(pod))
}

// IsAssumedPod returns whether a pod is assumed and not known to be bound.
func (a *Assumptions) IsAssumedPod(pod *v1.Pod) (bool, error) { return a.nodeOf(pod.UID) != "", nil }

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
	a.leader.mu.Lock()
	defer a.leader.mu.Unlock()
	return a.leader.core.AssumedCount(), nil
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
	a.leader.mu.Lock()
	defer a.leader.mu.Unlock()
	return &schedcache.Dump{AssumedPods: a.leader.core.AssumedPods(), Nodes: map[string]*framework.NodeInfo{}}
}

// nodeOf returns the node of an assumed pod; "" for other pods.
func (a *Assumptions) nodeOf(uid types.UID) string {
	a.leader.mu.Lock()
	defer a.leader.mu.Unlock()
	return a.leader.core.NodeOf(uid)
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
		assumed, _ := a.PodCount()
		return assumed == 0
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

// placement returns the placement of an assumed pod, and a channel that is closed when the owner of the node has answered.
// It returns nil if the owner has answered already.
func (l *Leader) placement(uid types.UID) (p core.Placement, answered chan struct{}, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, assumed := l.core.Placement(uid)
	switch {
	case !assumed:
		return p, nil, core.ErrReservationLost
	case p.Answered:
		return p, nil, nil
	}
	if l.answered[p.Attempt] == nil {
		l.answered[p.Attempt] = make(chan struct{})
	}
	return p, l.answered[p.Attempt], nil
}

// confirmed waits until the owner of the node has reserved capacity for a pod. It returns an error if
// the reservation is not or no longer valid.
func (a *Assumptions) confirmed(ctx context.Context, uid types.UID) error {
	placed, answered, err := a.leader.placement(uid)
	if err != nil {
		return err
	}
	if answered != nil {
		timeout := time.NewTimer(ackTimeout)
		defer timeout.Stop()
		select {
		case <-answered:
		case <-ctx.Done():
			return ctx.Err()
		case <-timeout.C:
			return fmt.Errorf("the replica that owns node %s did not answer within %v", placed.Node, ackTimeout)
		}
	}
	a.leader.mu.Lock()
	defer a.leader.mu.Unlock()
	tenure := a.leader.options.Tenure.Check()
	return a.leader.core.Valid(time.Now(), uid, placed.Attempt, tenure, a.leader.member)
}

// MayBind returns nil if the reservation of a pod is valid now.
func (a *Assumptions) MayBind(pod toolscache.ObjectName) error {
	a.leader.mu.Lock()
	defer a.leader.mu.Unlock()
	tenure := a.leader.options.Tenure.Check()
	return a.leader.core.MayBind(time.Now(), pod, tenure, a.leader.member)
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
	a.leader.mu.Lock()
	defer a.leader.mu.Unlock()
	a.leader.core.BindFailed(pod.UID, func(sent bool) bool { return isUnanswered(status.AsError(), sent) })
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
