package leader

import (
	"context"
	"maps"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// victims are the pods that preempting pods are evicting. Upstream's executor looks its last victim up in the
// pod informer, to find out whether the eviction is still in progress. The informer of a leader has only
// pending pods, so victims replaces it.
type victims struct {
	client kubernetes.Interface
	clock  clock.PassiveClock

	mu sync.Mutex
	// evicted are the victims whose eviction is in progress or has ended at most victimMemory ago, by namespace and
	// name. The older ones are forgotten at forgetAt.
	evicted  map[toolscache.ObjectName]*victim
	forgetAt time.Time
}

// victim is a pod that is being evicted, or was evicted.
type victim struct {
	uid types.UID
	// pod is its last known version; nil after it was deleted.
	pod *v1.Pod
	// evictions is the number of evictions in progress: several preempting pods may evict one pod. endedAt is the
	// time at which the last one has ended.
	evictions int
	endedAt   time.Time
	// deleted is true after the API server has accepted to delete the pod.
	deleted bool
}

// victimMemory is the time for which a victim is known after its eviction has ended. Upstream's executor looks the
// victim up until a moment later. If the victim was not known then, an event that arrives in this moment would not
// retry the preempting pod, and no event follows. Owners of nodes propose the victim again until they know that it is
// being deleted.
const victimMemory = time.Minute

// victimLookupTimeout is the timeout of the request for a victim.
const victimLookupTimeout = 2 * time.Second

func newVictims(client kubernetes.Interface, clock clock.PassiveClock) *victims {
	return &victims{client: client, clock: clock, evicted: map[toolscache.ObjectName]*victim{}}
}

// begin records that a pod is being evicted, and returns a function that records that the eviction has ended.
// deleted means that the API server has accepted to delete the pod.
func (v *victims) begin(pod *v1.Pod) (end func(deleted bool)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.forgetOld(v.clock.Now())
	name := toolscache.MetaObjectToName(pod)
	if known := v.evicted[name]; known == nil || known.uid != pod.UID {
		v.evicted[name] = &victim{uid: pod.UID, pod: pod}
	}
	record := v.evicted[name]
	record.evictions++
	return func(deleted bool) {
		v.mu.Lock()
		defer v.mu.Unlock()
		record.evictions--
		record.endedAt, record.deleted = v.clock.Now(), record.deleted || deleted
	}
}

// forgetOld forgets the victims whose evictions have ended long ago. The caller holds the lock.
func (v *victims) forgetOld(now time.Time) {
	if now.Before(v.forgetAt) {
		return
	}
	v.forgetAt = now.Add(victimMemory)
	maps.DeleteFunc(v.evicted, func(_ toolscache.ObjectName, record *victim) bool {
		return record.evictions == 0 && now.Sub(record.endedAt) > victimMemory
	})
}

// observe records a change of a pod. after is nil if the pod was deleted.
func (v *victims) observe(before, after *v1.Pod) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.evicted) == 0 || before == nil {
		return
	}
	if record := v.recordOf(before); record != nil && record.pod != nil {
		record.pod = after
	}
}

// recordOf returns the record of a pod; nil if there is none. The caller holds the lock.
func (v *victims) recordOf(pod *v1.Pod) *victim {
	if record := v.evicted[toolscache.MetaObjectToName(pod)]; record != nil && record.uid == pod.UID {
		return record
	}
	return nil
}

// markDeleted marks those of the given pods as terminating that were evicted already. Their owner does not know that
// yet: the events of pods on one node come from several replicas, so the owner may know of the last victim's deletion
// before that of another one. Upstream's evaluator does not evict a terminating pod again.
func (v *victims) markDeleted(pods []*v1.Pod) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, pod := range pods {
		if record := v.recordOf(pod); record != nil && record.deleted && pod.DeletionTimestamp == nil {
			pod.DeletionTimestamp = &metav1.Time{Time: record.endedAt}
		}
	}
}

// isGone asks the API server whether a pod that is being evicted no longer exists. Its deletion event may have arrived
// before [victims.begin], so only now the record says that the pod is gone.
func (v *victims) isGone(ctx context.Context, pod *v1.Pod) bool {
	ctx, cancel := context.WithTimeout(ctx, victimLookupTimeout)
	defer cancel()
	current, err := v.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	// After another error than that the pod does not exist, the preempting pod is retried needlessly instead of
	// possibly too late.
	gone := err != nil || current.UID != pod.UID
	if gone {
		v.observe(pod, nil)
	}
	return gone
}

// List returns nothing. The executor never calls it.
func (*victims) List(labels.Selector) ([]*v1.Pod, error) { return nil, nil }

// Pods returns a lister of the victims in a namespace.
func (v *victims) Pods(namespace string) corelisters.PodNamespaceLister {
	return victimsOfNamespace{v, namespace}
}

type victimsOfNamespace struct {
	*victims
	namespace string
}

// Get returns a victim, or an error if it was deleted. A pod without a record exists: the executor asks for a
// victim just before the record begins.
func (v victimsOfNamespace) Get(name string) (*v1.Pod, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	record := v.evicted[toolscache.ObjectName{Namespace: v.namespace, Name: name}]
	switch {
	case record == nil:
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: v.namespace, Name: name}}, nil
	case record.pod == nil:
		return nil, apierrors.NewNotFound(v1.Resource("pods"), name)
	}
	return record.pod, nil
}
