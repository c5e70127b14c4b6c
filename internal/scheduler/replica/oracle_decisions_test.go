package replica

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
	"k8s.io/utils/ptr"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/reference"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest/generate"
)

// attempt is the result of an attempt to schedule a pod.
type attempt struct {
	// node is the chosen node; "" if the pod fits on none.
	node string
	// candidates are those that upstream's preemption finds for a pod that fits on no node.
	candidates []preemption.Candidate
}

type schedulePod = func(context.Context, framework.Framework, fwk.CycleState, *framework.QueuedPodInfo) (kubescheduler.ScheduleResult, error)

// observe returns a function that schedules a pod, and compares the result with the reference.
func (w *oracleWorld) observe(schedule schedulePod) schedulePod {
	return func(ctx context.Context, fw framework.Framework, state fwk.CycleState, queued *framework.QueuedPodInfo) (kubescheduler.ScheduleResult, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		pod := w.pending[queued.Pod.UID]
		if pod == nil {
			w.fail(queued.Pod, "the leader schedules a pod that is not pending")
			return schedule(ctx, fw, state, queued)
		}
		// After a failed bind, the pod is on no node.
		delete(w.Pods, pod.UID)
		compare := w.attempts[pod.UID] == nil || w.attempts[pod.UID].node != ""
		var want reference.Decision
		if compare {
			want = w.expect(pod)
		}
		result, err := schedule(ctx, fw, state, queued)
		if w.conclude(pod, result, err) && compare {
			w.compare(pod, result, err, want)
		}
		return result, err
	}
}

// expect returns the decision of the reference.
func (w *oracleWorld) expect(pod *v1.Pod) reference.Decision {
	want, err := w.reference.Decide(w.Ctx, slices.Collect(maps.Values(w.Pods)), slices.Collect(maps.Values(w.Nodes)), pod)
	if err != nil {
		w.fail(pod, "the reference fails: %v", err)
	}
	return want
}

// conclude records the result of an attempt. It returns false if the attempt failed without a decision.
func (w *oracleWorld) conclude(pod *v1.Pod, result kubescheduler.ScheduleResult, err error) bool {
	switch {
	case err == nil:
		bound := pod.DeepCopy()
		bound.Spec.NodeName = result.SuggestedHost
		w.record("%s is on %s", pod.Name, result.SuggestedHost)
		w.Pods[pod.UID] = bound
		w.attempts[pod.UID] = &attempt{node: result.SuggestedHost}
	case errors.As(err, new(*framework.FitError)):
		if w.attempts[pod.UID] == nil || w.attempts[pod.UID].node != "" {
			candidates, err := w.reference.Preempt(w.Ctx, w.preemptionArgs, slices.Collect(maps.Values(w.Pods)), slices.Collect(maps.Values(w.Nodes)), pod)
			if err != nil {
				w.fail(pod, "the reference fails: %v", err)
			}
			w.attempts[pod.UID] = &attempt{candidates: candidates}
		}
	default:
		w.record("%s is retried after error %v", pod.Name, err)
		w.tally.retried++
		return false
	}
	return true
}

// compare compares a decision with that of the reference.
func (w *oracleWorld) compare(pod *v1.Pod, result kubescheduler.ScheduleResult, err error, want reference.Decision) {
	w.tally.decisions++
	switch problem := want.Check(result, err, true); {
	case problem != "":
		w.fail(pod, "%s", problem)
	case err != nil:
		w.tally.refused++
		w.compareErrors(pod, err, want.FitError)
	default:
		w.tally.placed++
	}
}

// compareErrors compares the reasons for which a pod fits on no node.
func (w *oracleWorld) compareErrors(pod *v1.Pod, err error, want *framework.FitError) {
	got := &framework.FitError{}
	errors.As(err, &got)
	if want.Diagnosis.PreFilterMsg != "" {
		// No owner is asked, so the number of nodes is from the last status reports.
		want.NumAllNodes = got.NumAllNodes
	}
	if got.Error() != want.Error() {
		w.fail(pod, "SchedulePod() = error %q, want %q", err, want)
	}
	if got, want := got.Diagnosis.UnschedulablePlugins, want.Diagnosis.UnschedulablePlugins; !got.Equal(want) {
		w.fail(pod, "UnschedulablePlugins = %v, want %v", got, want)
	}
}

// newPod returns a random pod. Half of them may preempt others, and many of these need much room or avoid pods in a
// whole zone.
func (w *oracleWorld) newPod() *v1.Pod {
	pod := w.Pod()
	if w.Chance(50) {
		return pod
	}
	pod.Spec.Priority = ptr.To(generate.Pick(w.Rand, []int32{5, 5, 6}))
	if pod.Spec.Resources == nil && w.Chance(40) {
		pod.Spec.Containers[0].Resources.Requests = schedtest.Resources(generate.Pick(w.Rand, []string{"2", "3"}), "1Gi")
	}
	if w.Chance(70) {
		w.KeepApart(pod)
	}
	return pod
}

// fillingPod returns a pod that needs all room that the node of a withdrawn nomination has by now; nil if it has none.
func (w *oracleWorld) fillingPod() *v1.Pod {
	node := w.Nodes[w.freedNode]
	w.freedNode = ""
	if node == nil {
		return nil
	}
	info := framework.NewNodeInfo()
	info.SetNode(node)
	w.mu.Lock()
	for _, pod := range slices.Concat(slices.Collect(maps.Values(w.Pods)), w.nominated) {
		if pod.Spec.NodeName == node.Name || pod.Spec.NodeName == "" && pod.Status.NominatedNodeName == node.Name {
			info.AddPod(pod)
		}
	}
	w.mu.Unlock()
	free := info.Allocatable.MilliCPU - info.Requested.MilliCPU
	if free <= 0 {
		return nil
	}
	w.LastNumber++
	pod := schedtest.PlainPod(fmt.Sprintf("pod-%d", w.LastNumber), fmt.Sprintf("%dm", free))
	pod.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}}
	// Upstream takes the current time for a pod without a start time, so the choice among its victims would be random.
	pod.Status.StartTime = &metav1.Time{Time: time.Unix(int64(w.Rand.IntN(1<<30)), 0)}
	if zone := node.Labels[v1.LabelTopologyZone]; zone != "" {
		pod.Spec.NodeSelector = map[string]string{v1.LabelTopologyZone: zone}
	}
	w.tally.filling++
	return pod
}

// decide lets the leader schedule a new pod, several equal ones, a nominated one, or one that takes the room of a
// withdrawn nomination.
func (w *oracleWorld) decide() {
	pod := w.fillingPod()
	if pod != nil {
		w.decideAbout(pod)
		return
	}
	pod = w.newPod()
	if len(w.nominated) > 0 && w.Chance(15) {
		pod = generate.Pick(w.Rand, w.nominated).DeepCopy()
		pod.Spec.SchedulingGates = nil
		w.record("ungate %s", pod.Name)
	}
	pods := []*v1.Pod{pod}
	if pod.Status.NominatedNodeName == "" && w.Chance(20) {
		for range 1 + w.Rand.IntN(5) {
			pods = append(pods, w.Copy(pod))
		}
	}
	w.decideAbout(pods...)
}

// decideAbout lets the leader schedule pods, until one of them is not bound.
func (w *oracleWorld) decideAbout(pods ...*v1.Pod) {
	w.mu.Lock()
	w.evicted = nil
	for _, pod := range pods {
		w.pending[pod.UID] = pod
	}
	w.mu.Unlock()
	for _, pod := range pods {
		// One after the other, so that no pod is evicted while another one is scheduled.
		put(w, pod)
		if !w.follow(pod) {
			return
		}
	}
}

// follow waits until a pod is bound, or until the leader has reported that it fits on no node. It returns false if the
// pod is not bound in the end.
func (w *oracleWorld) follow(pod *v1.Pod) bool {
	var last *attempt
	w.Eventually(fmt.Sprintf("pod %s is bound or unschedulable", pod.Name), func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		last = w.attempts[pod.UID]
		stored := w.API.Pod(schedtest.KeyOf(pod))
		if last == nil || last.node != stored.Spec.NodeName || last.node == "" && !unschedulable(stored) {
			return fmt.Errorf("the last attempt is %+v, the pod is on node %q with conditions %+v", last, stored.Spec.NodeName, stored.Status.Conditions)
		}
		return nil
	})
	if last.node == "" {
		return w.followPreemption(pod, last.candidates)
	}
	w.settle(pod)
	return true
}

// settle ends the wait for a bound pod.
func (w *oracleWorld) settle(pod *v1.Pod) {
	w.setNominated(withoutPod(w.nominated, pod.UID))
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pending, pod.UID)
	delete(w.attempts, pod.UID)
}

// unschedulable reports whether the scheduler has found that a pod fits on no node.
func unschedulable(pod *v1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c v1.PodCondition) bool { return c.Reason == v1.PodReasonUnschedulable })
}

// terminate handles the eviction of a pod: it starts to terminate. The test ends it later.
func (w *oracleWorld) terminate(pod *v1.Pod) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.record("%s is evicted", pod.Name)
	w.evicted = append(w.evicted, pod.Name)
	known := w.Pods[pod.UID]
	if known == nil {
		w.fail(pod, "a pod is evicted that is on no node")
		return true
	}
	now := metav1.Now()
	terminating := known.DeepCopy()
	terminating.DeletionTimestamp = &now
	w.Pods[pod.UID] = terminating
	put(w, terminating)
	return false
}
