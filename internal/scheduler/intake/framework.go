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

// intakeQueue wraps the scheduling queue. It passes the events of informers to the intake.
type intakeQueue struct {
	queue.SchedulingQueue
	intake *Intake
}

// Add handles a new pod from the watch.
func (q intakeQueue) Add(ctx context.Context, pod *v1.Pod) { q.intake.handleAdd(ctx, pod) }

// Update handles a new version of a pod from the watch.
func (q intakeQueue) Update(ctx context.Context, oldPod, newPod *v1.Pod) {
	q.intake.handleUpdate(ctx, oldPod, newPod)
}

// Delete handles a pod that was deleted or bound.
func (q intakeQueue) Delete(logger klog.Logger, pod *v1.Pod) { q.intake.handleDelete(logger, pod) }

// Run is called when the scheduler leads and starts to schedule.
func (q intakeQueue) Run(logger klog.Logger) {
	q.SchedulingQueue.Run(logger)
	q.intake.startSweep(logger)
}

// Close stops the intake and the queue.
func (q intakeQueue) Close() {
	q.intake.stopSweep()
	q.SchedulingQueue.Close()
}

// earlyFramework delays an early pod until it is stored, before the first step with effects outside the
// scheduler.
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

// RunPreBindPreFlights waits until an early pod is stored. If the feature gate NominatedNodeNameForExpectation
// is enabled, it is the first step of a binding cycle, and the pod's status is patched after it.
func (f earlyFramework) RunPreBindPreFlights(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	if err := f.awaitStored(ctx, pod); err != nil {
		return fwk.AsStatus(err)
	}
	return f.Framework.RunPreBindPreFlights(ctx, state, pod, node)
}

// WaitOnPermit waits until an early pod is stored. Without that feature gate, it is the first step of a
// binding cycle. It precedes all effects.
func (f earlyFramework) WaitOnPermit(ctx context.Context, pod *v1.Pod) *fwk.Status {
	if err := f.awaitStored(ctx, pod); err != nil {
		return fwk.AsStatus(err)
	}
	return f.Framework.WaitOnPermit(ctx, pod)
}

func (f earlyFramework) awaitStored(ctx context.Context, pod *v1.Pod) error {
	err := f.intake.awaitStored(ctx, pod)
	if err != nil && f.RejectWaitingPod(pod.UID) {
		// A permit plugin also delays the pod. RejectWaitingPod has ended that wait, and WaitOnPermit
		// removes the pod from the waiting pods.
		f.Framework.WaitOnPermit(ctx, pod)
	}
	return err
}

// failureHandler returns a handler that ends a failed scheduling attempt of an early pod, and calls next,
// upstream's handler, for other pods. When it is called, the pod is no longer assumed.
func (in *Intake) failureHandler(next kubescheduler.FailureHandlerFn) kubescheduler.FailureHandlerFn {
	return func(
		ctx context.Context, fw framework.Framework, info *framework.QueuedPodInfo, status *fwk.Status, nominating *fwk.NominatingInfo, start time.Time,
	) {
		if in.handleFailure(info.Pod) {
			klog.FromContext(ctx).V(3).Info("Leaving a pod to the watch", "pod", klog.KObj(info.Pod), "reason", status.Message())
			return
		}
		next(ctx, fw, info, status, nominating, start)
	}
}
