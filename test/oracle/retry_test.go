package oracle

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/interpodaffinity"
)

// retry makes a change after which a pending pod fits, and judges whether the scheduler notices it. The change is
// one write, so that the scheduler sees no state in between.
func (w *world) retry(pod *v1.Pod) {
	defer w.deletePod(pod.Namespace, pod.Name)
	if w.makeRoom(pod); w.lastRoom == "" {
		return
	}
	before := w.observer.observe().without(pod.UID)
	expected := w.observer.expect(before, pod)
	if expected.Feasible == 0 {
		return
	}
	w.tally.retried++
	got := w.await(pod.UID, expected, before)
	problem := judge(expected, got)
	if problem != "" && got.node == "" && before.waiting() {
		// The change makes room for other pending pods, too. One of them may have taken it, although it is nominated to
		// another node.
		problem = judge(w.observer.expect(w.observer.observe().without(pod.UID), pod), got)
	}
	if problem != "" {
		w.tally.wrong++
		w.report(w.lastRoom+", and then "+problem, pod, before, expected)
	}
}

// makeRoom makes a change after which a pod fits, if it finds one, and describes it in lastRoom.
func (w *world) makeRoom(pod *v1.Pod) {
	w.lastRoom = ""
	s := w.observer.observe()
	switch w.rand.IntN(3) {
	case 0:
		w.addBareNode()
		w.lastRoom = "a node was added"
	case 1:
		w.changeNodeFor(s, pod)
	default:
		w.removePodFor(s, pod)
	}
}

// removePodFor deletes or finishes a pod without which the given one fits.
func (w *world) removePodFor(s state, pod *v1.Pod) {
	for _, other := range s.assigned() {
		if w.observer.expect(s.without(other.UID), pod).Feasible == 0 {
			continue
		}
		w.lastRoom = other.Name + " was removed"
		if w.chance(25) {
			w.finish(other)
		} else {
			w.deletePod(other.Namespace, other.Name)
		}
		return
	}
}

// changeNodeFor gives a node other labels and no taints, so that a pod fits on it, or on another one. One of the nodes on
// which the pod fits then must have rejected it for another reason than the anti-affinity of other pods: upstream's
// InterPodAffinity looks only at the terms of the pending pod when a node changes, so kube-scheduler would not notice that
// such a node fits.
func (w *world) changeNodeFor(s state, pod *v1.Pod) {
	fitError := w.observer.expect(s, pod).FitError
	if fitError == nil {
		return
	}
	noticed := func(after expectation, node *v1.Node) bool {
		reasons := fitError.Diagnosis.NodeToStatus.Get(node.Name).Reasons()
		return after.fits(node.Name) && !slices.Contains(reasons, interpodaffinity.ErrReasonExistingAntiAffinityRulesNotMatch)
	}
	for i := range s.nodes {
		node := s.nodes[i].DeepCopy()
		w.randomizeNode(node)
		node.Status, node.Spec.Taints, node.Spec.Unschedulable = s.nodes[i].Status, nil, false
		after := s
		after.nodes = slices.Clone(s.nodes)
		after.nodes[i] = node
		expected := w.observer.expect(after, pod)
		if !slices.ContainsFunc(s.nodes, func(node *v1.Node) bool { return noticed(expected, node) }) {
			continue
		}
		w.lastRoom = node.Name + " was changed"
		_, err := w.client.CoreV1().Nodes().Update(w.ctx, node, metav1.UpdateOptions{})
		w.must(err)
		return
	}
}
