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

// TestWakePodsChangesPendingPodsOfSimulatedNodesOnly checks that pods on other nodes are not
// changed, and that a pod is woken until it runs.
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
	client := fake.NewClientset(
		node("simulated", map[string]string{"simulated": "fake"}), node("real", nil), pod("on-simulated", "simulated"), pod("on-real", "real"))
	woken := 0
	client.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if name := action.(clienttesting.PatchAction).GetName(); name != "on-simulated" {
			t.Errorf("wakePods() changed pod %s, want only on-simulated changed", name)
		}
		if woken++; woken == 2 {
			// Delete the pod instead of changing its phase to Running, because the fake client
			// ignores field selectors.
			if err := client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "default", "on-simulated"); err != nil {
				t.Error(err)
			}
		}
		return true, &corev1.Pod{}, nil
	})
	if err := wakePods(t.Context(), client, "simulated", time.Millisecond); err != nil || woken != 2 {
		t.Errorf("wakePods() = %v after %d changes, want nil after 2", err, woken)
	}
}
