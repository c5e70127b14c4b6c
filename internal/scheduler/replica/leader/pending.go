package leader

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/core"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// BeginList handles the start of a replica's list of pending pods. It returns an error if the replica has too many open
// ones.
func (l *Leader) BeginList(from string, id int64) error {
	l.pendingMu.Lock()
	defer l.pendingMu.Unlock()
	return l.pending.BeginList(from, id)
}

// Connected handles a new connection from another replica (see [core.Leader.Connected]).
func (l *Leader) Connected(from string) {
	l.pendingMu.Lock()
	l.pending.Connected(from)
	l.pendingMu.Unlock()
	l.do(func(c *core.Leader, _ time.Time) core.Output { return c.Connected(from) })
}

// Receive passes pending pods and events from another replica to the scheduler.
func (l *Leader) Receive(from string, b *wire.Batch) error {
	if len(b.Pending)+len(b.Events) == 0 {
		return nil
	}
	if l.Term() == 0 {
		return nil
	}
	l.pendingMu.Lock()
	defer l.pendingMu.Unlock()
	for i := range b.Pending {
		if !l.member.Trusts(from, b.Pending[i].UID) {
			continue
		}
		if err := l.handlePending(&b.Pending[i]); err != nil {
			return err
		}
	}
	for i := range b.Events {
		if err := l.handleEvent(from, &b.Events[i]); err != nil {
			return err
		}
	}
	return nil
}

// HandlePending processes a pending pod, or the message that a pod is no longer pending.
func (l *Leader) HandlePending(item *wire.Item) error {
	l.pendingMu.Lock()
	defer l.pendingMu.Unlock()
	return l.handlePending(item)
}

func (l *Leader) handlePending(item *wire.Item) error {
	pod, err := core.Decode(item)
	switch {
	case err != nil:
		return err
	case pod != nil:
		for _, change := range l.pending.Set(pod) {
			l.apply(change)
		}
	case l.pending.Has(item.UID):
		if item.Node != l.assumptions.nodeOf(item.UID) {
			l.search.invalidate()
		}
		l.removePending(item.UID, item.Node)
	case item.Node != "":
		// The pod was never pending here. It has no later message to settle it, because it is bound.
		l.do(func(c *core.Leader, _ time.Time) core.Output { return c.SettleBound(item.UID) })
	default:
		l.settleDeleted(item.UID)
	}
	return nil
}

// settleDeleted releases the reservation that a leader of an earlier term requested for a deleted pod.
func (l *Leader) settleDeleted(uid types.UID) {
	l.do(func(c *core.Leader, _ time.Time) core.Output { return c.SettleDeleted(uid) })
}

// removePending removes a pod that is no longer pending: it was bound to a node, or deleted if node is "".
func (l *Leader) removePending(uid types.UID, node string) {
	if change, pending := l.pending.Remove(uid, node); pending {
		l.apply(change)
	}
}

// apply passes a change of a pending pod to the scheduler.
func (l *Leader) apply(change core.PodChange) {
	before, after := change.Before, change.After
	if after != nil && after.Spec.NodeName == "" {
		_ = l.podEvents.indexer.Add(after)
		if before == nil || before.ResourceVersion != after.ResourceVersion {
			notifyTyped(l.podEvents, before, after)
		}
		return
	}
	_ = l.podEvents.indexer.Delete(before)
	if after == nil {
		// A deleted pod cannot be bound late. The scheduler retries other pods because of the notification, so the
		// reservation is released first.
		l.settleDeleted(before.UID)
	}
	notifyTyped(l.podEvents, before, after)
}

// pendingLookupTimeout is the timeout of the request for a pod in resolve. After an error, the request is
// sent again after pendingLookupInterval.
const pendingLookupTimeout, pendingLookupInterval = 2 * time.Second, time.Second

// lookUp finds out what became of a pending pod that is missing from a complete list, although a leader has placed it.
func (l *Leader) lookUp(pod *v1.Pod) {
	for l.isPending(pod.UID) && !l.resolve(pod) {
		select {
		case <-l.ctx.Done():
			return
		case <-time.After(pendingLookupInterval):
		}
	}
}

func (l *Leader) isPending(uid types.UID) bool {
	l.pendingMu.Lock()
	defer l.pendingMu.Unlock()
	return l.pending.Has(uid)
}

// resolve gets a pod from the API server, and removes it from the pending pods if it was bound or deleted. It
// returns false if the request failed.
func (l *Leader) resolve(pod *v1.Pod) bool {
	ctx, cancel := context.WithTimeout(l.ctx, pendingLookupTimeout)
	defer cancel()
	current, err := l.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		l.logger.Info("Looking up a pod that is missing from a list failed; trying again", "pod", klog.KObj(pod), "err", err)
		return false
	}
	boundTo := ""
	if err == nil && current.UID == pod.UID {
		if boundTo = current.Spec.NodeName; boundTo == "" {
			// The watch reports the bind or the deletion.
			return true
		}
	}
	l.pendingMu.Lock()
	defer l.pendingMu.Unlock()
	l.removePending(pod.UID, boundTo)
	return true
}

// EndList handles the end of a replica's list (see [core.Pending.EndList]).
func (l *Leader) EndList(from string, id int64, slots []int) {
	l.pendingMu.Lock()
	defer l.pendingMu.Unlock()
	placed := func(uid types.UID) bool { return l.assumptions.nodeOf(uid) != "" || l.Earlier(uid) != "" }
	deleted, unclear := l.pending.EndList(from, id, slots, placed)
	for _, change := range deleted {
		l.apply(change)
	}
	for _, pod := range unclear {
		go l.lookUp(pod)
	}
}

// unmarshaler is a pointer to an API object of type T with a method that decodes protobuf.
type unmarshaler[T any] interface {
	*T
	Unmarshal([]byte) error
}

// decodeEvent decodes the objects of an event. before is nil for a new object, and after for a deleted
// one.
func decodeEvent[T any, P unmarshaler[T]](event *wire.Event) (before, after P, err error) {
	for _, part := range []struct {
		data []byte
		to   *P
	}{{event.Before, &before}, {event.After, &after}} {
		if len(part.data) > 0 && err == nil {
			*part.to = new(T)
			err = (*part.to).Unmarshal(part.data)
		}
	}
	return before, after, err
}

// notifyTyped calls the handlers of an informer. It converts a nil pointer to a nil interface, which
// notify requires.
func notifyTyped[P comparable](informer *eventInformer, before, after P) {
	var none P
	var beforeObject, afterObject any
	if before != none {
		beforeObject = before
	}
	if after != none {
		afterObject = after
	}
	if beforeObject != nil || afterObject != nil {
		informer.notify(beforeObject, afterObject)
	}
}
