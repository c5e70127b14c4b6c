package intake

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/backend/queue"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// intakeQueue wraps the scheduling queue: the intake handles the events of informers first.
type intakeQueue struct {
	queue.SchedulingQueue
	intake *Intake
}

// Add handles a new pod of the watch.
func (q intakeQueue) Add(ctx context.Context, pod *v1.Pod) { q.intake.seen(ctx, pod) }

// Update handles a new version of a pod.
func (q intakeQueue) Update(ctx context.Context, oldPod, newPod *v1.Pod) {
	q.intake.updated(ctx, oldPod, newPod)
}

// Delete removes a pod from the queue.
func (q intakeQueue) Delete(logger klog.Logger, pod *v1.Pod) { q.intake.deleted(logger, pod) }

// Run is called when the scheduler starts to schedule, because it leads.
func (q intakeQueue) Run(logger klog.Logger) {
	q.SchedulingQueue.Run(logger)
	q.intake.begin(logger)
}

// Close stops the queue.
func (q intakeQueue) Close() {
	q.intake.end()
	q.SchedulingQueue.Close()
}

// earlyFramework delays early pods before they have effects that others can see.
type earlyFramework struct {
	framework.Framework
	intake *Intake
}

// RunPostFilterPlugins prevents preemption for a pod that may never be stored.
func (f earlyFramework) RunPostFilterPlugins(
	ctx context.Context, state fwk.CycleState, pod *v1.Pod, statuses fwk.NodeToStatusReader,
) (*fwk.PostFilterResult, *fwk.Status) {
	if f.intake.unconfirmed(pod) {
		return nil, fwk.NewStatus(fwk.Unschedulable, "the pod is not stored yet and must not preempt others")
	}
	return f.Framework.RunPostFilterPlugins(ctx, state, pod, statuses)
}

// RunPreBindPreFlights is the first step of a binding cycle if the feature gate is on that patches
// the pod's status after it.
func (f earlyFramework) RunPreBindPreFlights(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	if err := f.await(ctx, pod); err != nil {
		return fwk.AsStatus(err)
	}
	return f.Framework.RunPreBindPreFlights(ctx, state, pod, node)
}

// WaitOnPermit is the first step of a binding cycle otherwise, and comes before all effects.
func (f earlyFramework) WaitOnPermit(ctx context.Context, pod *v1.Pod) *fwk.Status {
	if err := f.await(ctx, pod); err != nil {
		return fwk.AsStatus(err)
	}
	return f.Framework.WaitOnPermit(ctx, pod)
}

func (f earlyFramework) await(ctx context.Context, pod *v1.Pod) error {
	err := f.intake.await(ctx, pod)
	if err != nil && f.RejectWaitingPod(pod.UID) {
		// A permit plugin also delays the pod; that wait ends here.
		f.Framework.WaitOnPermit(ctx, pod)
	}
	return err
}

// failureHandler ends failed attempts of early pods, and calls upstream's handler for others. The
// resources of the pod are free again when it is called.
func (in *Intake) failureHandler(next kubescheduler.FailureHandlerFn) kubescheduler.FailureHandlerFn {
	return func(
		ctx context.Context, fw framework.Framework, info *framework.QueuedPodInfo, status *fwk.Status, nominating *fwk.NominatingInfo, start time.Time,
	) {
		if in.failed(info.Pod) {
			klog.FromContext(ctx).V(3).Info("Leaving a pod to the watch", "pod", klog.KObj(info.Pod), "reason", status.Message())
			return
		}
		next(ctx, fw, info, status, nominating, start)
	}
}
