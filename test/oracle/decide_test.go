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
	pod := w.randomPod()
	if w.crowded && w.chance(40) {
		pod.Spec.PriorityClassName = "high"
	}
	w.addResourceClaim(pod)
	draft := w.create(pod, metav1.DryRunAll)
	if draft == nil {
		w.removeUnusedClaims()
		return
	}
	w.settle(settleDecision)
	before := w.observer.observe()
	expected := w.observer.expect(before, draft)
	created := w.create(pod)
	got := w.await(created.UID, expected, before)
	w.count(expected)
	if problem := judge(expected, got); problem != "" {
		w.tally.wrong++
		w.report(problem, created, before, expected)
	}
	if got.node == "" {
		w.deletePod(pod.Namespace, pod.Name)
	} else {
		w.start(pod.Namespace, pod.Name)
	}
	w.removeUnusedClaims()
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
		w.actAsKubelet(now)
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

// outcomeOf returns what happened to a pod and to those that were on a node before.
func outcomeOf(pod types.UID, before state, now []v1.Pod) (got outcome) {
	running := map[types.UID]bool{}
	for i := range now {
		running[now[i].UID] = now[i].DeletionTimestamp == nil
		if now[i].UID != pod {
			continue
		}
		got.node = now[i].Spec.NodeName
		for _, condition := range now[i].Status.Conditions {
			if condition.Type == v1.PodScheduled && condition.Status == v1.ConditionFalse {
				got.reason = condition.Reason + ": " + condition.Message
			}
		}
	}
	for _, other := range before.assigned() {
		if !running[other.UID] {
			got.evicted = append(got.evicted, other.Name)
		}
	}
	slices.Sort(got.evicted)
	return got
}

func (w *world) listPods() []v1.Pod {
	w.t.Helper()
	list, err := w.client.CoreV1().Pods("").List(w.ctx, metav1.ListOptions{})
	w.must(err)
	return list.Items
}

// actAsKubelet deletes some of the pods that are ending.
func (w *world) actAsKubelet(pods []v1.Pod) {
	for i := range pods {
		if pods[i].DeletionTimestamp != nil && w.chance(30) {
			w.deletePod(pods[i].Namespace, pods[i].Name)
		}
	}
}
