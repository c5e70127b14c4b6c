package oracle

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// addGatedPod creates a pod that a scheduling gate holds back. Some are nominated to a node already: other pods
// of at most their priority must leave room for them there.
func (w *world) addGatedPod() {
	pod := w.randomPod()
	pod.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "example.com/gate"}}
	created := w.create(pod)
	if created == nil {
		return
	}
	if w.chance(75) {
		w.patchStatus(created, `{"status":{"nominatedNodeName":%q}}`, pick(w, w.names...))
	}
	w.settle(settleWorld)
}

// gatedPods returns the pods that a scheduling gate holds back.
func (w *world) gatedPods() (pods []*v1.Pod) {
	for _, pod := range w.observer.observe().pods {
		if len(pod.Spec.SchedulingGates) > 0 {
			pods = append(pods, pod)
		}
	}
	return pods
}

// ungate removes the gate of a pod, and compares the decision that follows.
func (w *world) ungate(pod *v1.Pod) {
	pod = pod.DeepCopy()
	pod.Spec.SchedulingGates = nil
	if w.chance(30) {
		// Only a gated pod can get a node selector.
		pod.Spec.NodeSelector = map[string]string{"disk": pick(w, "ssd", "hdd")}
	}
	update := func(dryRun ...string) (*v1.Pod, error) {
		return w.client.CoreV1().Pods(pod.Namespace).Update(w.ctx, pod, metav1.UpdateOptions{DryRun: dryRun})
	}
	draft, err := update(metav1.DryRunAll)
	if err != nil && invalid(err) {
		w.deletePod(pod.Namespace, pod.Name)
		return
	}
	w.must(err)
	before, expected := w.expect(draft)
	updated, err := update()
	w.must(err)
	w.follow(updated, before, expected)
}
