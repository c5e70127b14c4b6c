package leader

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/refresh"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// BeginList handles the start of a list of pending pods.
func (l *Leader) BeginList(from string, id int64) {
	l.pendingMu.Lock()
	defer l.pendingMu.Unlock()
	l.tick++
	l.lists.Begin(from, id, l.tick)
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
		if err := l.takePending(&b.Pending[i]); err != nil {
			return err
		}
	}
	for i := range b.Events {
		if err := l.takeEvent(&b.Events[i]); err != nil {
			return err
		}
	}
	return nil
}

// TakePending takes one pending pod, or the removal of one.
func (l *Leader) TakePending(item *wire.Item) error {
	l.pendingMu.Lock()
	defer l.pendingMu.Unlock()
	return l.takePending(item)
}

func (l *Leader) takePending(item *wire.Item) error {
	before, ok := l.pending[item.UID]
	switch {
	case len(item.Object) > 0:
		pod := &v1.Pod{}
		if err := pod.Unmarshal(item.Object); err != nil {
			return err
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
	}
	return nil
}

// isLatest returns whether a pod is the latest of its name, and removes an older one. Two replicas
// may send two pods of one name at different times, and the queue identifies pods by name.
func (l *Leader) isLatest(pod *v1.Pod) bool {
	stored, ok, _ := l.podEvents.indexer.Get(pod)
	if !ok || stored.(*v1.Pod).UID == pod.UID {
		return true
	}
	other := stored.(*v1.Pod)
	order, err := resourceversion.CompareResourceVersion(pod.ResourceVersion, other.ResourceVersion)
	if err == nil && order < 0 {
		return false
	}
	l.removePending(other, "")
	return true
}

// pendingLookupTimeout is the time for the API server to return a pod.
const pendingLookupTimeout = 2 * time.Second

// resolveMissing handles a pending pod that is missing from a complete list. An assumed pod is
// either bound or deleted; the API server is asked which.
func (l *Leader) resolveMissing(pod *v1.Pod) {
	node := l.assumptions.nodeOf(pod.UID)
	if node == "" {
		l.removePending(pod, "")
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(l.ctx, pendingLookupTimeout)
		defer cancel()
		now, err := l.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return
		}
		where := ""
		if err == nil && now.UID == pod.UID {
			where = now.Spec.NodeName
			if where == "" {
				return
			}
		}
		l.pendingMu.Lock()
		defer l.pendingMu.Unlock()
		if known, ok := l.pending[pod.UID]; ok {
			l.removePending(known.Pod, where)
		}
	}()
}

// removePending removes a pod that does not wait any more, because it is bound to a node or, if
// node is "", deleted.
func (l *Leader) removePending(pod *v1.Pod, node string) {
	delete(l.pending, pod.UID)
	// Another pod may have the name now.
	if stored, ok, _ := l.podEvents.indexer.Get(pod); ok && stored.(*v1.Pod).UID == pod.UID {
		_ = l.podEvents.indexer.Delete(pod)
	}
	if node == "" {
		l.podEvents.notify(pod, nil)
		return
	}
	bound := *pod
	bound.Spec.NodeName = node
	l.podEvents.notify(pod, &bound)
}

// EndList handles the end of a list: pending pods with UIDs in some hash slots that were not in it
// are resolved.
func (l *Leader) EndList(from string, id int64, slots []int) {
	l.pendingMu.Lock()
	defer l.pendingMu.Unlock()
	l.lists.End(from, id, slots, l.pending, l.resolveMissing)
}

// takeEvent passes an event of a bound pod or a node to the scheduler.
func (l *Leader) takeEvent(news *wire.Event) error {
	l.search.invalidate()
	if news.Node {
		before, after, err := decoded[v1.Node](news)
		if err == nil {
			notifyTyped(l.nodeEvents, before, after)
		}
		return err
	}
	before, after, err := decoded[v1.Pod](news)
	if err == nil {
		notifyTyped(l.podEvents, before, after)
	}
	return err
}

// readable is a pointer to an API object that decodes itself.
type readable[T any] interface {
	*T
	Unmarshal([]byte) error
}

func decoded[T any, P readable[T]](news *wire.Event) (before, after P, err error) {
	for _, part := range []struct {
		data []byte
		to   *P
	}{{news.Before, &before}, {news.After, &after}} {
		if len(part.data) > 0 && err == nil {
			*part.to = new(T)
			err = (*part.to).Unmarshal(part.data)
		}
	}
	return before, after, err
}

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
