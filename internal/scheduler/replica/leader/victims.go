package leader

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
)

// victims are the pods that preempting pods are evicting. Upstream's executor looks its last victim up in the
// pod informer, to find out whether the eviction is still in progress. The informer of a leader has only
// pending pods, so victims replaces it.
type victims struct {
	client kubernetes.Interface

	mu sync.Mutex
	// evicted are the victims whose eviction is in progress, by namespace and name.
	evicted map[toolscache.ObjectName]*victim
}

// victim is a pod that is being evicted.
type victim struct {
	// pod is its last known version; nil after it was deleted.
	pod *v1.Pod
	// evictions is the number of evictions in progress: several preempting pods may evict one pod.
	evictions int
}

// victimLookupTimeout is the timeout of the request for a victim.
const victimLookupTimeout = 2 * time.Second

func newVictims(client kubernetes.Interface) *victims {
	return &victims{client: client, evicted: map[toolscache.ObjectName]*victim{}}
}

// begin records that a pod is being evicted, and returns a function that ends the record.
func (v *victims) begin(pod *v1.Pod) (end func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	name := toolscache.MetaObjectToName(pod)
	if known := v.evicted[name]; known == nil || known.pod != nil && known.pod.UID != pod.UID {
		v.evicted[name] = &victim{pod: pod}
	}
	record := v.evicted[name]
	record.evictions++
	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		if record.evictions--; record.evictions == 0 && v.evicted[name] == record {
			delete(v.evicted, name)
		}
	}
}

// observe records a change of a pod. after is nil if the pod was deleted.
func (v *victims) observe(before, after *v1.Pod) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.evicted) == 0 || before == nil {
		return
	}
	if record := v.evicted[toolscache.MetaObjectToName(before)]; record != nil && record.pod != nil && record.pod.UID == before.UID {
		record.pod = after
	}
}

// isGone asks the API server whether a pod no longer exists. Its deletion event may have arrived before
// [victims.begin], so the record does not tell.
func (v *victims) isGone(ctx context.Context, pod *v1.Pod) bool {
	ctx, cancel := context.WithTimeout(ctx, victimLookupTimeout)
	defer cancel()
	current, err := v.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		// After another error, the pod is retried needlessly instead of possibly too late.
		return true
	}
	return current.UID != pod.UID
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
