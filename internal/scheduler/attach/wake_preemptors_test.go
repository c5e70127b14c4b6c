package attach_test

import (
	"context"
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// TestLastVictimIsGoneAlready evicts two pods. The second is deleted while the first is
// evicted. The preemptor is retried although no event wakes it.
func TestLastVictimIsGoneAlready(t *testing.T) {
	e := schedtest.NewFaulty(t, []*v1.Node{schedtest.PlainNode("node", "2")})
	victims := []*v1.Pod{schedtest.PlainPod("one", "1"), schedtest.PlainPod("two", "1")}
	for _, plugin := range e.Sched.Profiles[v1.DefaultSchedulerName].PreEnqueuePlugins() {
		theirs, is := plugin.(*defaultpreemption.DefaultPreemption)
		if !is {
			continue
		}
		evict := theirs.Executor.PreemptPod
		theirs.Executor.PreemptPod = func(ctx context.Context, c preemption.Candidate, preemptor preemption.ExecutorPreemptor, victim *v1.Pod, plugin string) (bool, error) {
			inMemory, err := evict(ctx, c, preemptor, victim, plugin)
			for _, other := range victims {
				e.API.Remove(other)
			}
			e.Eventually("the scheduler knows that they are gone", func() error {
				if count, _ := e.Sched.Cache.PodCount(); count > 0 {
					return fmt.Errorf("%d are there", count)
				}
				return nil
			})
			return inMemory, err
		}
	}
	e.Run()
	for _, pod := range victims {
		e.API.Put(pod)
		e.AwaitNode(pod.Name)
	}
	urgent := schedtest.PlainPod("urgent", "2")
	urgent.Spec.Priority = new(int32)
	*urgent.Spec.Priority = 1
	e.API.Put(urgent)
	e.AwaitNode("urgent")
}
