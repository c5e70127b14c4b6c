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

// TestPreemptorIsRetriedIfLastVictimIsDeletedEarly evicts two pods. The second is deleted while the
// first is being evicted, so that no later event wakes the preemptor. It is scheduled nevertheless.
func TestPreemptorIsRetriedIfLastVictimIsDeletedEarly(t *testing.T) {
	f := schedtest.New(t, []*v1.Node{schedtest.PlainNode("node", "2")})
	victims := []*v1.Pod{schedtest.PlainPod("one", "1"), schedtest.PlainPod("two", "1")}
	for _, plugin := range f.Sched.Profiles[v1.DefaultSchedulerName].PreEnqueuePlugins() {
		preemptionPlugin, ok := plugin.(*defaultpreemption.DefaultPreemption)
		if !ok {
			continue
		}
		evict := preemptionPlugin.Executor.PreemptPod
		preemptionPlugin.Executor.PreemptPod = func(ctx context.Context, c preemption.Candidate, preemptor preemption.ExecutorPreemptor, victim *v1.Pod, plugin string) (bool, error) {
			inMemory, err := evict(ctx, c, preemptor, victim, plugin)
			for _, other := range victims {
				f.API.Remove(other)
			}
			f.Eventually("the cache has no pods", func() error {
				if count, _ := f.Sched.Cache.PodCount(); count > 0 {
					return fmt.Errorf("Cache.PodCount() = %d", count)
				}
				return nil
			})
			return inMemory, err
		}
	}
	f.Run()
	for _, pod := range victims {
		f.API.Put(pod)
		f.AwaitBound(pod.Name)
	}
	urgent := schedtest.PlainPod("urgent", "2")
	urgent.Spec.Priority = new(int32)
	*urgent.Spec.Priority = 1
	f.API.Put(urgent)
	f.AwaitBound("urgent")
}
