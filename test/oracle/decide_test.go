package oracle

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// decide lets the scheduler decide about one pod, and compares the decision with that of upstream's plugins.
// They decide first, about the objects that the API server has and the pod as it would store it.
func (w *world) decide() {
	defer w.removeUnusedClaims()
	pod := w.randomPod()
	if w.crowded && w.chance(55) {
		pod.Spec.PriorityClassName = "high"
	}
	w.addResourceClaim(pod)
	draft := w.create(pod, metav1.DryRunAll)
	if draft == nil {
		return
	}
	before, expected := w.expect(draft)
	w.follow(w.create(pod), before, expected)
}

// expect returns all objects and what upstream's plugins decide about a pod.
func (w *world) expect(pod *v1.Pod) (state, expectation) {
	w.settle(settleDecision)
	before := w.observer.observe()
	return before, w.observer.expect(before, pod)
}

// follow waits for the decision about a pod and judges it.
func (w *world) follow(pod *v1.Pod, before state, expected expectation) {
	if len(expected.candidates) > 0 && w.chance(30) {
		w.followPreemption(pod, before, expected)
		return
	}
	got := w.await(pod.UID, expected, before)
	w.count(expected)
	right := w.check(pod, got, before, expected)
	switch {
	case got.node != "":
		w.start(pod)
	case right && w.chance(50):
		w.retry(pod)
	default:
		w.deletePod(pod.Namespace, pod.Name)
	}
}

// check reports an outcome that is wrong, and returns whether it is right.
func (w *world) check(pod *v1.Pod, got outcome, before state, expected expectation) bool {
	problem := judge(expected, got)
	if problem != "" && len(got.evicted) > 0 {
		problem = judgeOwn(expected, got, w.withoutOthers(pod.UID, before, got), w.fitsWithout(before, pod, got.evicted))
	}
	if problem != "" {
		w.tally.wrong++
		w.report(problem, pod, before, expected)
	}
	return problem == ""
}

// count adds a decision to the tally, by what is expected.
func (w *world) count(e expectation) {
	w.tally.decisions++
	switch {
	case e.Feasible > 0:
		w.tally.placed++
	case len(e.candidates) > 0:
		w.tally.preempted++
	default:
		w.tally.pending++
	}
}

// await waits until the scheduler has decided about a pod. If it decides otherwise than expected, it has
// time to change its mind: a pod may be retried.
func (w *world) await(pod types.UID, e expectation, before state) (got outcome) {
	var decided time.Time
	late := settleDecision
	if w.cluster.replicas > 1 {
		late = settleReplicas
	}
	deadline := time.Now().Add(w.settings.patience)
	for ; ; time.Sleep(20 * time.Millisecond) {
		now := w.listPods()
		got = outcomeOf(pod, before, now)
		w.actAsKubelet(now, before, got)
		w.actAsProvisioner()
		done := got.node != "" || got.refused() && e.Feasible == 0 && len(e.candidates) == 0
		switch {
		case !done:
			decided = time.Time{}
		case decided.IsZero():
			decided = time.Now()
		case time.Since(decided) > late:
			// Evictions that are not needed may come after the decision.
			return got
		}
		if time.Now().After(deadline) {
			return got
		}
	}
}

// outcomeOf returns what happened to a pod and to those that were running on a node before.
func outcomeOf(pod types.UID, before state, now []v1.Pod) (got outcome) {
	running := map[types.UID]bool{}
	for i := range now {
		running[now[i].UID] = now[i].DeletionTimestamp == nil
		if now[i].UID == pod {
			got.node, got.nominated, got.reason = now[i].Spec.NodeName, now[i].Status.NominatedNodeName, refusal(&now[i])
		}
	}
	for _, other := range before.assigned() {
		if !running[other.UID] && other.DeletionTimestamp == nil {
			got.evicted = append(got.evicted, other.Name)
		}
	}
	slices.Sort(got.evicted)
	return got
}

// refusal returns the reason and the message for which a pod is pending; "" if the scheduler has not given any.
func refusal(pod *v1.Pod) string {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == v1.PodScheduled && condition.Status == v1.ConditionFalse && condition.Reason != v1.PodReasonSchedulingGated {
			return condition.Reason + ": " + condition.Message
		}
	}
	return ""
}

func (w *world) listPods() []v1.Pod {
	w.t.Helper()
	list, err := w.client.CoreV1().Pods("").List(w.ctx, metav1.ListOptions{})
	w.must(err)
	return list.Items
}

// actAsKubelet deletes some of the pods that are ending because of the decision. Pods that were ending before
// remain, because the expectation counts them, unless the pod waits for them.
func (w *world) actAsKubelet(now []v1.Pod, before state, got outcome) {
	ending := map[types.UID]bool{}
	for _, pod := range before.pods {
		ending[pod.UID] = pod.DeletionTimestamp != nil
	}
	for i := range now {
		awaited := !ending[now[i].UID] || got.nominated != "" && now[i].Spec.NodeName == got.nominated
		if now[i].DeletionTimestamp != nil && awaited && w.chance(30) {
			w.deletePod(now[i].Namespace, now[i].Name)
		}
	}
}
