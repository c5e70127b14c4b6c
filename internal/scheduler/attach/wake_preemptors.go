package attach

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
)

// wakePreemptors retries a preemptor whose last victim was already gone when it was to be evicted.
// Upstream then waits for the deletion event of that victim, which may have come while the
// preemptor was held back for the other victims; it would wait for five minutes.
func wakePreemptors(fw framework.Framework) {
	pods := fw.SharedInformerFactory().Core().V1().Pods().Lister()
	for _, plugin := range fw.PreEnqueuePlugins() {
		theirs, ok := plugin.(*defaultpreemption.DefaultPreemption)
		if !ok {
			continue
		}
		evict := theirs.Executor.PreemptPod
		theirs.Executor.PreemptPod = func(ctx context.Context, c preemption.Candidate, preemptor preemption.ExecutorPreemptor, victim *v1.Pod, plugin string) (bool, error) {
			known, err := pods.Pods(victim.Namespace).Get(victim.Name)
			gone := err != nil || known.UID != victim.UID
			inMemory, err := evict(ctx, c, preemptor, victim, plugin)
			if gone && !inMemory && err == nil {
				fw.Activate(klog.FromContext(ctx), preemptor.Pods())
			}
			return inMemory, err
		}
	}
}
