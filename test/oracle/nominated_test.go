package oracle

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// followPreemption judges which pods are evicted for a pod. While the victims end, and the pod is only nominated to
// its node, it lets the scheduler decide about another pod.
func (w *world) followPreemption(pod *v1.Pod, before state, expected expectation) {
	defer w.deletePod(pod.Namespace, pod.Name)
	got := w.awaitNomination(pod.UID, before)
	w.count(expected)
	if w.check(pod, got, before, expected) {
		w.tally.beside++
		w.decide()
	}
}

// awaitNomination waits until a pod is nominated or bound to a node. The outcome has the one as the other.
func (w *world) awaitNomination(pod types.UID, before state) (got outcome) {
	for deadline := time.Now().Add(w.settings.patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		got = outcomeOf(pod, before, w.listPods())
		if got.node == "" {
			got.node = got.nominated
		}
		if got.node != "" {
			// Evictions that are not needed may come later.
			time.Sleep(settleReplicas)
			got.evicted = outcomeOf(pod, before, w.listPods()).evicted
			return got
		}
	}
	return got
}
