package replica

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// TestNewerPodOfSameNameIsQueued delivers two pods with one name to the leader, as from two
// replicas. The queue has the newer pod in either order of arrival.
func TestNewerPodOfSameNameIsQueued(t *testing.T) {
	g := newGroup(t, 2)
	older, newer := schedtest.PlainPod("pod", "1"), schedtest.PlainPod("pod", "1")
	older.UID, newer.UID = "older", "newer"
	older.ResourceVersion, newer.ResourceVersion = "9", "10"
	leader := g.replicas[0].leader
	deliver := func(pods ...*v1.Pod) {
		for _, pod := range pods {
			g.Must(leader.HandlePending(&wire.Item{UID: pod.UID, Object: wire.MarshalObject(pod)}))
		}
	}
	remove := func(pod *v1.Pod) {
		g.Must(leader.HandlePending(&wire.Item{UID: pod.UID}))
	}
	awaitNewerQueued := func() {
		t.Helper()
		g.Eventually("the queue has only the newer pod", func() error {
			pending, _ := g.Sched.SchedulingQueue.PendingPods()
			if len(pending) != 1 || pending[0].UID != newer.UID {
				return fmt.Errorf("the queue has %d pods", len(pending))
			}
			return nil
		})
	}
	deliver(older, newer)
	awaitNewerQueued()
	remove(older)
	awaitNewerQueued()
	remove(newer)
	deliver(newer, older)
	remove(older)
	awaitNewerQueued()
}
