package leader

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/refresh"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// TestMissingPodIsLookedUpAgainAfterError has the API server answer the first request for an assumed pod that
// is missing from a list with an error. The pod is removed from the pending pods nevertheless.
func TestMissingPodIsLookedUpAgainAfterError(t *testing.T) {
	pod := schedtest.PlainPod("pod", "1")
	assumed := pod.DeepCopy()
	assumed.Spec.NodeName = "node"
	var requests atomic.Int64
	client := fake.NewClientset()
	client.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		if requests.Add(1) == 1 {
			return true, nil, errors.New("the server is overloaded")
		}
		return true, assumed, nil
	})
	l := &Leader{
		ctx: t.Context(), client: client, podEvents: newEventInformer(),
		pending:     map[types.UID]refresh.Object{pod.UID: {Pod: pod}},
		assumptions: &Assumptions{assumed: map[types.UID]*assumption{pod.UID: {pod: assumed}}},
	}
	l.pendingMu.Lock()
	l.resolveMissing(pod)
	l.pendingMu.Unlock()
	for deadline := time.Now().Add(schedtest.Patience); ; time.Sleep(5 * time.Millisecond) {
		l.pendingMu.Lock()
		left := len(l.pending)
		l.pendingMu.Unlock()
		if left == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the pod is still pending after %d requests", requests.Load())
		}
	}
}

// TestConnectedForgetsLists checks that a new connection ends the lists that the sender had started on the previous
// one, and no list of another replica.
func TestConnectedForgetsLists(t *testing.T) {
	l := &Leader{lists: refresh.Lists{}}
	l.BeginList("a", 1)
	l.BeginList("b", 1)
	l.Connected("a")
	if len(l.lists["a"]) != 0 || len(l.lists["b"]) != 1 {
		t.Errorf("the lists are %v, want only that of replica b", l.lists)
	}
}
