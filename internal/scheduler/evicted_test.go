package scheduler

import (
	"context"
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
)

// TestLastVictimIsGoneAlready evicts two pods, of which the second leaves by itself while the
// first is evicted: who comes for their place is told of neither, and is tried all the same.
func TestLastVictimIsGoneAlready(t *testing.T) {
	e := newFaulty(t, []*v1.Node{plainNode("node", "2")})
	victims := []*v1.Pod{plainPod("one", "1"), plainPod("two", "1")}
	for _, plugin := range e.sched.Profiles[v1.DefaultSchedulerName].PreEnqueuePlugins() {
		theirs, is := plugin.(*defaultpreemption.DefaultPreemption)
		if !is {
			continue
		}
		evict := theirs.Executor.PreemptPod
		theirs.Executor.PreemptPod = func(ctx context.Context, c preemption.Candidate, preemptor preemption.ExecutorPreemptor, victim *v1.Pod, plugin string) (bool, error) {
			inMemory, err := evict(ctx, c, preemptor, victim, plugin)
			for _, other := range victims {
				e.api.remove(other)
			}
			e.eventually("the scheduler knows that they are gone", func() error {
				if count, _ := e.sched.Cache.PodCount(); count > 0 {
					return fmt.Errorf("%d are there", count)
				}
				return nil
			})
			return inMemory, err
		}
	}
	e.run()
	for _, pod := range victims {
		e.api.put(pod)
		e.awaitNode(pod.Name)
	}
	urgent := plainPod("urgent", "2")
	urgent.Spec.Priority = new(int32)
	*urgent.Spec.Priority = 1
	e.api.put(urgent)
	e.awaitNode("urgent")
}
