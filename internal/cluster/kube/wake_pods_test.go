package kube

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestWakePodsChangesPendingPodsOfSimulatedNodesOnly checks that pods of other nodes are not changed, and
// that a pod is changed in every round until it runs.
func TestWakePodsChangesPendingPodsOfSimulatedNodesOnly(t *testing.T) {
	node := func(name string, annotations map[string]string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}}
	}
	pod := func(name, node string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)},
			Spec:       corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: corev1.PodPending},
		}
	}
	client := fake.NewClientset(node("played", map[string]string{"simulated": "fake"}), node("real", nil), pod("waits", "played"), pod("starts", "real"))
	woken := 0
	client.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if name := action.(clienttesting.PatchAction).GetName(); name != "waits" {
			t.Errorf("WakePods changed the pod %s", name)
		}
		if woken++; woken == 2 {
			// Delete the pod, so that it is no longer listed, as if it ran. The fake client ignores
			// field selectors.
			if err := client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "default", "waits"); err != nil {
				t.Error(err)
			}
		}
		return true, &corev1.Pod{}, nil
	})
	if err := wakePods(t.Context(), client, "simulated", time.Millisecond); err != nil || woken != 2 {
		t.Errorf("wakePods changed the pod %d times, want 2; error %v", woken, err)
	}
}
