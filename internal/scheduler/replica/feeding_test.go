package replica

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// TestNamesOfReplicas sends two pods of one name from two replicas. Only the later pod counts, in
// either order of arrival.
func TestNamesOfReplicas(t *testing.T) {
	e := newEnsemble(t, 2)
	first, second := schedtest.PlainPod("pod", "1"), schedtest.PlainPod("pod", "1")
	first.UID, second.UID = "first", "second"
	first.ResourceVersion, second.ResourceVersion = "9", "10"
	lead := e.all[0].leader
	tell := func(pods ...*v1.Pod) {
		for _, pod := range pods {
			e.Must(lead.HandlePending(&wire.Item{UID: pod.UID, Object: wire.MarshalObject(pod)}))
		}
	}
	gone := func(pod *v1.Pod) {
		e.Must(lead.HandlePending(&wire.Item{UID: pod.UID}))
	}
	queued := func(want string) {
		t.Helper()
		e.Eventually("the queue has the later one", func() error {
			pending, _ := e.Sched.SchedulingQueue.PendingPods()
			if len(pending) != 1 || string(pending[0].UID) != want {
				return fmt.Errorf("it has %d pods", len(pending))
			}
			return nil
		})
	}
	tell(first, second)
	queued("second")
	gone(first)
	queued("second")
	gone(second)
	tell(second, first)
	gone(first)
	queued("second")
}
