package oracle

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// change sometimes changes the world between two decisions.
func (w *world) change() {
	w.endPods()
	switch n := w.rand.IntN(100); {
	case n < 18:
		for range 1 + w.rand.IntN(3) {
			w.removeRunningPod()
		}
		return // decide waits long enough for pods
	case n < 21:
		w.addNode()
	case n < 23:
		w.removeNode()
	case n < 27:
		w.changeNode()
	case n < 29:
		w.changeNamespace()
	case n < 32:
		w.onRunningPod(w.terminate)
	case n < 34:
		w.onRunningPod(w.finish)
	case n < 37:
		w.onRunningPod(w.relabel)
	case n < 39:
		w.onRunningPod(w.resize)
	case n < 41:
		w.changeWorkloads()
	case n < 43:
		w.changeDevices()
	case n < 45:
		w.changeBudget()
	default:
		return
	}
	w.settle(settleWorld)
}

// onRunningPod calls a function with a random pod that is on a node, if there is one.
func (w *world) onRunningPod(f func(*v1.Pod)) {
	if pods := w.observer.observe().assigned(); len(pods) > 0 {
		f(pick(w, pods...))
	}
}

func (w *world) removeRunningPod() {
	w.onRunningPod(func(pod *v1.Pod) { w.deletePod(pod.Namespace, pod.Name) })
}

// terminate deletes a pod gracefully. It occupies its node until endPods deletes it.
func (w *world) terminate(pod *v1.Pod) {
	err := w.client.CoreV1().Pods(pod.Namespace).Delete(w.ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(60))})
	if !gone(err) {
		w.must(err)
	}
}

// endPods deletes some of the pods that are terminating.
func (w *world) endPods() {
	for _, pod := range w.listPods() {
		if pod.DeletionTimestamp != nil && w.chance(40) {
			w.deletePod(pod.Namespace, pod.Name)
		}
	}
}

// finish lets the containers of a pod end. The pod remains, but occupies its node no longer.
func (w *world) finish(pod *v1.Pod) {
	w.patchStatus(pod, `{"status":{"phase":%q}}`, pick(w, v1.PodSucceeded, v1.PodFailed))
}

// resize lets a pod have other resources than its spec requests, as while the kubelet resizes it.
func (w *world) resize(pod *v1.Pod) {
	w.patchStatus(pod, `{"status":{"containerStatuses":[{"name":"main","image":"nginx","imageID":"nginx","allocatedResources":{"cpu":%[1]q},"resources":{"requests":{"cpu":%[1]q}}}]}}`,
		pick(w, "50m", "700m", "1500m"))
}

// relabel changes the labels by which other pods select a pod.
func (w *world) relabel(pod *v1.Pod) {
	patch := sprintf(`{"metadata":{"labels":{"app":%q,"version":%q}}}`, pick(w, apps...), pick(w, "1", "2"))
	_, err := w.client.CoreV1().Pods(pod.Namespace).Patch(w.ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	w.must(err)
}

// start sets the start time of a pod, as a kubelet does. Preemption compares these times, which differ here
// for all pods, so that only one set of victims is right.
func (w *world) start(pod *v1.Pod) {
	w.patchStatus(pod, `{"status":{"phase":"Running","startTime":%q}}`, time.Unix(int64(w.rand.IntN(1<<30)), 0).UTC().Format(time.RFC3339))
}

// patchStatus changes the status of a pod.
func (w *world) patchStatus(pod *v1.Pod, format string, args ...any) {
	patch := sprintf(format, args...)
	_, err := w.client.CoreV1().Pods(pod.Namespace).Patch(w.ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	w.must(err)
}

// removeNode deletes a node, but not the pods on it.
func (w *world) removeNode() {
	if len(w.names) <= 3 {
		return
	}
	i := w.rand.IntN(len(w.names))
	w.must(w.client.CoreV1().Nodes().Delete(w.ctx, w.names[i], metav1.DeleteOptions{}))
	w.removedNames = append(w.removedNames, w.names[i])
	w.names = slices.Delete(w.names, i, i+1)
}

// changeDevices removes the devices of a node, or adds some.
func (w *world) changeDevices() {
	name := pick(w, w.names...)
	device := pick(w, gpu, fpga)
	err := w.client.ResourceV1().ResourceSlices().Delete(w.ctx, sliceName(name, device), metav1.DeleteOptions{})
	if gone(err) {
		w.addDevices(name, device)
		return
	}
	w.must(err)
}

// Pauses in which the scheduler receives what the API server has: after a change of the world, and after
// a decision. Replicas send some messages to each other only every 250 ms.
const (
	settleWorld    = time.Second
	settleDecision = 60 * time.Millisecond
	settleReplicas = 300 * time.Millisecond
)

// settle waits until the scheduler has received all changes. The pause becomes longer if the informers of
// the test have to wait for the changes too, because the machine is busy then.
func (w *world) settle(pause time.Duration) {
	started := time.Now()
	w.observer.observe()
	if w.cluster.replicas > 1 {
		pause = max(pause, settleReplicas)
	}
	time.Sleep(max(pause, 5*time.Since(started)))
}

// deletePod deletes a pod at once, as the kubelet does after its containers have ended.
func (w *world) deletePod(namespace, name string) {
	err := w.client.CoreV1().Pods(namespace).Delete(w.ctx, name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))})
	if !gone(err) {
		w.must(err)
	}
}
