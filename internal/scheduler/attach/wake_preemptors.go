package attach

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
)

// wakePreemptors makes the scheduler retry a preempting pod if one of its victims no longer exists when the
// pod evicts it (see [WakePreemptors]). It looks the victim up in the pod informer.
func wakePreemptors(fw framework.Framework) {
	pods := fw.SharedInformerFactory().Core().V1().Pods().Lister()
	WakePreemptors(fw, func(_ context.Context, victim *v1.Pod) bool {
		known, err := pods.Pods(victim.Namespace).Get(victim.Name)
		return err != nil || known.UID != victim.UID
	})
}

// WakePreemptors makes the scheduler retry a preempting pod if isGone returns true for one of its victims
// just before the pod evicts it. Upstream would retry the pod after the deletion event of its last victim.
// But that event may already have arrived while the pod could not be retried because of other victims. Then
// the pod would wait for five minutes.
func WakePreemptors(fw framework.Framework, isGone func(context.Context, *v1.Pod) bool) {
	for _, plugin := range fw.PreEnqueuePlugins() {
		upstream, ok := plugin.(*defaultpreemption.DefaultPreemption)
		if !ok {
			continue
		}
		evict := upstream.Executor.PreemptPod
		upstream.Executor.PreemptPod = func(ctx context.Context, c preemption.Candidate, preemptor preemption.ExecutorPreemptor, victim *v1.Pod, plugin string) (bool, error) {
			gone := isGone(ctx, victim)
			async, err := evict(ctx, c, preemptor, victim, plugin)
			if gone && !async && err == nil {
				fw.Activate(klog.FromContext(ctx), preemptor.Pods())
			}
			return async, err
		}
	}
}
