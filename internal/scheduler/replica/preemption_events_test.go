package replica

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// evictedPods is a group with one node, and the pods that the leader has evicted.
type evictedPods struct {
	*group
	// after is called after each eviction, before the executor knows that it has ended.
	after func(victim *v1.Pod)
	// handled is the number of deletion events that the leader has handled, and requested that of requests to delete a
	// pod.
	handled, requested atomic.Int64
}

// newEvictedPods returns a group with one node of two CPUs that is full with two pods, "one" and "two".
func newEvictedPods(t *testing.T) *evictedPods {
	t.Helper()
	e := &evictedPods{group: startReplicas(t, make([]bool, 2), schedtest.PlainNode("node", "2")), after: func(*v1.Pod) {}}
	leader := e.replicas[0]
	for _, plugin := range leader.sched.Profiles[v1.DefaultSchedulerName].PreEnqueuePlugins() {
		if upstream, ok := plugin.(*defaultpreemption.DefaultPreemption); ok {
			evict := upstream.Executor.PreemptPod
			upstream.Executor.PreemptPod = func(ctx context.Context, c preemption.Candidate, preemptor preemption.ExecutorPreemptor, victim *v1.Pod, name string) (bool, error) {
				inMemory, err := evict(ctx, c, preemptor, victim, name)
				e.after(victim)
				return inMemory, err
			}
		}
	}
	// The scheduler has registered its handler before, so it has handled an event that is counted.
	_, err := leader.informers.Core().V1().Pods().Informer().AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		DeleteFunc: func(any) { e.handled.Add(1) },
	})
	e.Must(err)
	e.lead(0)
	for _, name := range []string{"one", "two"} {
		e.API.Put(schedtest.PlainPod(name, "1"))
		e.AwaitBound(name)
	}
	e.awaitConsistent()
	return e
}

// onDelete sets the function that is called when a client deletes a pod. The pod is not removed.
func (e *evictedPods) onDelete(f func(pod *v1.Pod)) {
	e.API.Mu.Lock()
	defer e.API.Mu.Unlock()
	e.API.OnDelete = func(pod *v1.Pod) bool {
		e.requested.Add(1)
		f(pod)
		return false
	}
}

// terminate makes a pod terminate.
func (e *evictedPods) terminate(name string) {
	pod := e.API.Pod("default/" + name).DeepCopy()
	pod.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	e.API.Put(pod)
}

// end removes pods, and waits until the leader has handled the events.
func (e *evictedPods) end(names ...string) {
	want := e.handled.Load()
	for _, name := range names {
		if pod := e.API.Pod("default/" + name); pod != nil {
			want++
			e.API.Remove(pod)
		}
	}
	e.Eventually("the leader has handled the deletions", func() error {
		if n := e.handled.Load(); n < want {
			return fmt.Errorf("it has handled %d of %d", n, want)
		}
		return nil
	})
}

// TestVictimEndsWhileItsEvictionEnds ends the last victim after its eviction, when the executor does not know yet that
// the eviction has ended. The preempting pod is retried, although no later event makes it schedulable.
func TestVictimEndsWhileItsEvictionEnds(t *testing.T) {
	e := newEvictedPods(t)
	e.onDelete(func(*v1.Pod) {})
	e.after = func(victim *v1.Pod) { e.end(victim.Name) }
	e.API.Put(urgentPod("urgent", "2"))
	e.AwaitBound("urgent")
	e.awaitConsistent()
}

// TestLastVictimIsDeletedEarly ends both victims while the first one is being evicted, so that no later event wakes the
// preempting pod.
func TestLastVictimIsDeletedEarly(t *testing.T) {
	e := newEvictedPods(t)
	e.after = func(*v1.Pod) { e.end("one", "two") }
	e.API.Put(urgentPod("urgent", "2"))
	e.AwaitBound("urgent")
	e.awaitConsistent()
}

// TestVictimIsEvictedOnce has the owner of the node learn that the last victim terminates, and not that the first one
// does: different replicas watch them. The preempting pod, which was nominated to no node by then, is retried, and must
// not evict the first one again.
func TestVictimIsEvictedOnce(t *testing.T) {
	e := newEvictedPods(t)
	e.onDelete(func(*v1.Pod) {})
	retried := make(chan struct{})
	last := ""
	e.after = func(victim *v1.Pod) {
		if e.requested.Load() != 2 || last != "" {
			return
		}
		last = victim.Name
		e.Eventually("the preempting pod is nominated", func() error {
			if e.API.Pod("default/urgent").Status.NominatedNodeName == "" {
				return errors.New("it is not")
			}
			return nil
		})
		e.API.Put(urgentPod("urgent", "2"))
		e.terminate(last)
		close(retried)
	}
	e.API.Put(urgentPod("urgent", "2"))
	<-retried
	e.Eventually("the preempting pod is retried, and nominated again", func() error {
		if e.API.Pod("default/urgent").Status.NominatedNodeName == "" {
			return errors.New("it is not")
		}
		return nil
	})
	// The evictions run in the background.
	time.Sleep(500 * time.Millisecond)
	if n := e.requested.Load(); n != 2 {
		t.Errorf("the leader has deleted pods %d times, want once for each of the 2 victims", n)
	}
	e.end("one", "two")
	e.AwaitBound("urgent")
	e.awaitConsistent()
}
