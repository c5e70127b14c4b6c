package leader

import (
	"fmt"
	"reflect"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kubernetes/pkg/scheduler/backend/heap"
	"k8s.io/kubernetes/pkg/scheduler/backend/queue"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/unexported"
)

// firstPods are the pods that the scheduling queue returns before all others: those for which a leader of an earlier
// term has reserved capacity. That leader has taken them from its queue already. If they waited behind pods of a higher
// priority again, these could be retried without end: they do not fit because of the reservations, and they cannot evict
// pods that are not bound.
type firstPods struct {
	mu   sync.RWMutex
	uids sets.Set[types.UID]
}

// insert adds a pod. If the queue has the pod, it must be updated there, so that it moves to the front.
func (f *firstPods) insert(uid types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.uids == nil {
		f.uids = sets.New[types.UID]()
	}
	f.uids.Insert(uid)
}

// remove removes a pod. If the queue has the pod, it stays where it is.
func (f *firstPods) remove(uid types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.uids.Delete(uid)
}

// clear removes all pods.
func (f *firstPods) clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.uids = nil
}

// has returns whether an entry of the queue is one of the pods.
func (f *firstPods) has(entry framework.QueuedEntityInfo) bool {
	pod, ok := entry.(*framework.QueuedPodInfo)
	return ok && f.uids.Has(pod.Pod.UID)
}

// before returns whether entry a comes before entry b. other is the order of entries that are both among the pods, or
// both not.
func (f *firstPods) before(a, b framework.QueuedEntityInfo, other func(a, b framework.QueuedEntityInfo) bool) bool {
	f.mu.RLock()
	first, second := f.has(a), f.has(b)
	f.mu.RUnlock()
	if first != second {
		return first
	}
	return other(a, b)
}

// OrderQueue makes kube-scheduler's queue return the pods first for which a leader of an earlier term has reserved
// capacity.
func (l *Leader) OrderQueue(q queue.SchedulingQueue) error {
	less, err := lessOf(q)
	if err != nil {
		return err
	}
	other := *less
	*less = func(a, b framework.QueuedEntityInfo) bool { return l.first.before(a, b, other) }
	return nil
}

// lessOf returns the function by which kube-scheduler's queue orders the pods that are ready to be scheduled.
func lessOf(q queue.SchedulingQueue) (less *heap.LessFunc[framework.QueuedEntityInfo], err error) {
	priorities, ok := q.(*queue.PriorityQueue)
	if !ok {
		return nil, fmt.Errorf("kube-scheduler's queue is a %T: build with the Kubernetes release in go.mod", q)
	}
	// The types of activeQ and of its data are unexported.
	active := reflect.ValueOf(priorities).Elem().FieldByName("activeQ")
	if active.Kind() != reflect.Interface || active.Elem().Kind() != reflect.Pointer {
		return nil, fmt.Errorf("kube-scheduler's %T has no field activeQ: build with the Kubernetes release in go.mod", q)
	}
	var entries **heap.Heap[framework.QueuedEntityInfo]
	if unexported.Field(active.Elem().Elem(), "queue", &entries, &err); err != nil {
		return nil, err
	}
	data := reflect.ValueOf(*entries).Elem().FieldByName("data")
	if data.Kind() != reflect.Pointer {
		return nil, fmt.Errorf("kube-scheduler's %T has no field data: build with the Kubernetes release in go.mod", *entries)
	}
	unexported.Field(data.Elem(), "lessFunc", &less, &err)
	return less, err
}

// moveToFront moves pods in the queue to its front, because they are among the first pods now.
func (l *Leader) moveToFront(uids []types.UID) {
	l.pendingMu.Lock()
	defer l.pendingMu.Unlock()
	for _, uid := range uids {
		if pod := l.pending.Get(uid); pod != nil && l.assumptions.nodeOf(uid) == "" {
			l.sched.SchedulingQueue.Update(l.ctx, pod, pod)
		}
	}
}
