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

// intakeQueue is the scheduling queue as informers see it.
type intakeQueue struct {
	queue.SchedulingQueue
	intake *Intake
}

// Add takes a pod that the watch shows.
func (q intakeQueue) Add(ctx context.Context, pod *v1.Pod) { q.intake.seen(ctx, pod) }

// Update takes a new version of a pod.
func (q intakeQueue) Update(ctx context.Context, oldPod, newPod *v1.Pod) {
	q.intake.updated(ctx, oldPod, newPod)
}

// Delete takes a pod out of the queue.
func (q intakeQueue) Delete(logger klog.Logger, pod *v1.Pod) { q.intake.deleted(logger, pod) }

// Run is called when the scheduler begins to schedule: it leads.
func (q intakeQueue) Run(logger klog.Logger) {
	q.SchedulingQueue.Run(logger)
	q.intake.begin(logger)
}

// Close ends the queue.
func (q intakeQueue) Close() {
	q.intake.end()
	q.SchedulingQueue.Close()
}

// earlyFramework holds early pods back where others would notice.
type earlyFramework struct {
	framework.Framework
	intake *Intake
}

// RunPostFilterPlugins evicts nobody for a pod that may never be stored.
func (f earlyFramework) RunPostFilterPlugins(
	ctx context.Context, state fwk.CycleState, pod *v1.Pod, statuses fwk.NodeToStatusReader,
) (*fwk.PostFilterResult, *fwk.Status) {
	if f.intake.unconfirmed(pod) {
		return nil, fwk.NewStatus(fwk.Unschedulable, "the pod is not stored yet, so it preempts nobody")
	}
	return f.Framework.RunPostFilterPlugins(ctx, state, pod, statuses)
}

// RunPreBindPreFlights is the first thing in a binding cycle where what it is
// followed by is on: a patch of the pod's status.
func (f earlyFramework) RunPreBindPreFlights(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	if err := f.await(ctx, pod); err != nil {
		return fwk.AsStatus(err)
	}
	return f.Framework.RunPreBindPreFlights(ctx, state, pod, node)
}

// WaitOnPermit is the first thing in a binding cycle otherwise, and comes before all
// that has effects.
func (f earlyFramework) WaitOnPermit(ctx context.Context, pod *v1.Pod) *fwk.Status {
	if err := f.await(ctx, pod); err != nil {
		return fwk.AsStatus(err)
	}
	return f.Framework.WaitOnPermit(ctx, pod)
}

func (f earlyFramework) await(ctx context.Context, pod *v1.Pod) error {
	err := f.intake.await(ctx, pod)
	if err != nil && f.RejectWaitingPod(pod.UID) {
		// A plugin has the pod wait, too, which ends here.
		f.Framework.WaitOnPermit(ctx, pod)
	}
	return err
}

// failureHandler ends tries of early pods, and has upstream's handler do the others.
// Their resources are free again when it is called.
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
