package leader

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/refresh"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// BeginList handles the start of a replica's list of pending pods. It returns an error if the replica has too many open
// ones.
func (l *Leader) BeginList(from string, id int64) error {
	l.pendingMu.Lock()
	defer l.pendingMu.Unlock()
	l.tick++
	return l.lists.Begin(from, id, l.tick)
}

// Connected handles a new connection from another replica. Events that the replica sent on the previous one may
// be lost, so all unschedulable pods are retried.
func (l *Leader) Connected(from string) {
	l.pendingMu.Lock()
	delete(l.lists, from)
	l.pendingMu.Unlock()
	l.forgetStall(from)
	if l.Term() > 0 {
		l.search.invalidate()
		go l.retryUnschedulable()
	}
}

// Receive passes pending pods and events from another replica to the scheduler.
func (l *Leader) Receive(from string, b *wire.Batch) error {
	if len(b.Pending)+len(b.Events) == 0 {
		return nil
	}
	l.mu.Lock()
	leads := l.term > 0
	l.mu.Unlock()
	if !leads {
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
	before, ok := l.pending[item.UID]
	switch {
	case len(item.Object) > 0:
		pod := &v1.Pod{}
		if err := pod.Unmarshal(item.Object); err != nil {
			return err
		}
		if pod.UID != item.UID {
			return fmt.Errorf("pending pod %v with UID %q in a message about UID %q", klog.KObj(pod), pod.UID, item.UID)
		}
		if !l.isLatest(pod) {
			return nil
		}
		l.pending[pod.UID] = refresh.Object{Pod: pod, Tick: l.tick}
		if err := l.podEvents.indexer.Add(pod); err != nil {
			return err
		}
		if !ok {
			l.podEvents.notify(nil, pod)
		} else if before.Pod.ResourceVersion != pod.ResourceVersion {
			l.podEvents.notify(before.Pod, pod)
		}
	case ok:
		if item.Node != l.assumptions.nodeOf(item.UID) {
			l.search.invalidate()
		}
		l.removePending(before.Pod, item.Node)
	case item.Node != "":
		// The pod was never pending here. It has no later message to settle it, because it is bound.
		l.settleBound(item.UID)
	default:
		l.settleDeleted(item.UID)
	}
	return nil
}

// isLatest returns whether no newer pod with the same name is pending. It removes an older pod with the
// same name. Different replicas may send these two pods in either order, and the queue identifies pods
// by name.
func (l *Leader) isLatest(pod *v1.Pod) bool {
	stored, ok, _ := l.podEvents.indexer.Get(pod)
	if !ok || stored.(*v1.Pod).UID == pod.UID {
		return true
	}
	other := stored.(*v1.Pod)
	if refresh.IsNewer(other.ResourceVersion, pod.ResourceVersion) {
		return false
	}
	l.removePending(other, "")
	return true
}

// pendingLookupTimeout is the timeout of the request for a pod in resolve. After an error, the request is
// sent again after pendingLookupInterval.
const pendingLookupTimeout, pendingLookupInterval = 2 * time.Second, time.Second

// resolveMissing handles a pending pod that is missing from a complete list. If neither this leader nor an earlier
// one has placed the pod, it was deleted. Otherwise it was either bound or deleted, so the leader gets it from the
// API server.
func (l *Leader) resolveMissing(pod *v1.Pod) {
	if l.assumptions.nodeOf(pod.UID) == "" && l.Earlier(pod.UID) == "" {
		l.removePending(pod, "")
		return
	}
	go func() {
		for l.isPending(pod.UID) && !l.resolve(pod) {
			select {
			case <-l.ctx.Done():
				return
			case <-time.After(pendingLookupInterval):
			}
		}
	}()
}

func (l *Leader) isPending(uid types.UID) bool {
	l.pendingMu.Lock()
	defer l.pendingMu.Unlock()
	_, ok := l.pending[uid]
	return ok
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
	if known, ok := l.pending[pod.UID]; ok {
		l.removePending(known.Pod, boundTo)
	}
	return true
}

// removePending removes a pod that is no longer pending: it was bound to a node, or deleted if node is "".
func (l *Leader) removePending(pod *v1.Pod, node string) {
	delete(l.pending, pod.UID)
	// The indexer may already have a newer pod with the same name.
	if stored, ok, _ := l.podEvents.indexer.Get(pod); ok && stored.(*v1.Pod).UID == pod.UID {
		_ = l.podEvents.indexer.Delete(pod)
	}
	if node == "" {
		// A deleted pod cannot be bound late. The scheduler retries other pods because of the notification, so the
		// reservation is released first.
		l.settleDeleted(pod.UID)
		l.podEvents.notify(pod, nil)
		return
	}
	bound := *pod
	bound.Spec.NodeName = node
	l.podEvents.notify(pod, &bound)
}

// EndList handles the end of a replica's list. It calls resolveMissing for the pending pods in the given
// hash slots that were not in the list.
func (l *Leader) EndList(from string, id int64, slots []int) {
	l.pendingMu.Lock()
	defer l.pendingMu.Unlock()
	l.lists.End(from, id, slots, l.pending, l.resolveMissing)
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
