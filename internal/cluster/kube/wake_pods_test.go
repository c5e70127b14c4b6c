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

// TestWakePodsChangesPendingPodsOfSimulatedNodesOnly: pods of other nodes are not
// changed, and a pod is woken until it runs.
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
			t.Errorf("%s was woken", name)
		}
		if woken++; woken == 2 {
			// The pod leaves the list, as if it ran: the fake client ignores field selectors.
			if err := client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "default", "waits"); err != nil {
				t.Error(err)
			}
		}
		return true, &corev1.Pod{}, nil
	})
	if err := wakePods(t.Context(), client, "simulated", time.Millisecond); err != nil || woken != 2 {
		t.Errorf("woken %d times, %v", woken, err)
	}
}
