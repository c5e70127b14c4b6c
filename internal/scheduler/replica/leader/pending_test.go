package leader

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/core"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/member"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
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
	l := newTestLeader(t)
	l.client = client
	if err := l.HandlePending(&wire.Item{UID: pod.UID, Object: wire.MarshalObject(pod)}); err != nil {
		t.Fatal(err)
	}
	if err := l.assumptions.AssumePod(l.logger, assumed); err != nil {
		t.Fatal(err)
	}
	if err := l.BeginList("a", 1); err != nil {
		t.Fatal(err)
	}
	l.EndList("a", 1, []int{membership.SlotOf(pod.UID)})
	for deadline := time.Now().Add(schedtest.Patience); ; time.Sleep(5 * time.Millisecond) {
		if !l.isPending(pod.UID) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the pod is still pending after %d requests", requests.Load())
		}
	}
}

// newTestLeader returns a leader that does not lead yet, without other replicas.
func newTestLeader(t *testing.T) *Leader {
	options := member.Options{Self: membership.Member{Name: "self"}}
	client := fake.NewClientset()
	l := &Leader{
		options: options, ctx: t.Context(), client: client, member: member.New(t.Context(), options, nil, client, client, nil, member.Hooks{}),
		podEvents: newEventInformer(), nodeEvents: newEventInformer(), search: &Search{}, answered: map[uint64]chan struct{}{},
		core: core.NewLeader(core.LeaderConfig{Self: options.Self}), pending: core.NewPending(),
	}
	l.assumptions = &Assumptions{search: l.search, leader: l}
	return l
}
