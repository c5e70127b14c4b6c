package replica

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/intake"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// newGroupOfThree starts three replicas that share eight nodes of four CPUs.
func newGroupOfThree(t *testing.T) *group {
	var nodes []*v1.Node
	for i := range 8 {
		nodes = append(nodes, schedtest.PlainNode(fmt.Sprintf("node-%d", i), "4"))
	}
	return newGroup(t, 3, nodes...)
}

// TestReplicasReserveAndBindEarlyPods checks that early pods get reservations before they are
// stored, are bound after they are stored, and are counted once.
func TestReplicasReserveAndBindEarlyPods(t *testing.T) {
	g := newGroupOfThree(t)
	byWebhook, byWatch := schedtest.CounterDelta(t, schedtest.CounterValue("scheduler_intake_pods_total", "webhook")), schedtest.CounterDelta(t, schedtest.CounterValue("scheduler_intake_pods_total", "watch"))
	var pods []*v1.Pod
	for i := range 20 {
		pods = append(pods, schedtest.PlainPod(fmt.Sprintf("pod-%d", i), "1"))
		g.in.Take(pods[i].DeepCopy())
	}
	g.awaitReservations(len(pods), len(pods))
	if bound := len(g.API.Binds); bound != 0 {
		t.Fatalf("%d pods were bound before they were stored, want 0", bound)
	}
	for _, pod := range pods {
		g.API.Put(pod)
	}
	for _, pod := range pods {
		g.AwaitBoundOnce(pod)
	}
	g.awaitConsistent()
	if byWebhook() != len(pods) || byWatch() != 0 {
		t.Errorf("%d pods taken from the webhook and %d from the watch, want %d and 0", byWebhook(), byWatch(), len(pods))
	}
}

// TestReservationOfPodThatIsNeverStoredIsReleased checks that another pod gets the capacity of an
// early pod that is never stored.
func TestReservationOfPodThatIsNeverStoredIsReleased(t *testing.T) {
	g := newGroup(t, 2, schedtest.PlainNode("node", "4"))
	refused, next := schedtest.PlainPod("refused", "4"), schedtest.PlainPod("next", "4")
	g.in.Take(refused)
	g.awaitReservations(1, 1)
	g.API.Put(next)
	g.AwaitUnschedulable("next")
	g.clock.Step(intake.EarlyExpiry + intake.SweepInterval)
	g.AwaitBoundOnce(next)
	g.awaitConsistent()
}

// TestNextLeaderTakesOverEarlyPods checks that after the death of a leader the next one binds its
// early pods that were stored, and that the reservations of its other early pods expire.
func TestNextLeaderTakesOverEarlyPods(t *testing.T) {
	if testing.Short() {
		t.Skip("takes as long as reservations of a former leader are kept")
	}
	g := newGroupOfThree(t)
	stored, refused := schedtest.PlainPod("stored", "1"), schedtest.PlainPod("refused", "4")
	g.in.Take(stored.DeepCopy())
	g.in.Take(refused)
	g.awaitReservations(2, 2)
	g.replicas[0].withdraw()
	g.replicas[0].stop()
	g.API.Put(stored)
	g.lead(1)
	g.AwaitBoundOnce(stored)
	g.awaitConsistent()
	g.in.Take(schedtest.PlainPod("later", "1"))
	if early, _ := g.in.Remembered(); early != 1 {
		t.Errorf("the next leader remembers %d early pods after Take(), want 1", early)
	}
}

// TestStoredPodReplacesDifferentEarlyPod stores a pod with larger requests than were delivered. The
// pod is bound to another node than the early pod was assumed on, and the first reservation is
// released.
func TestStoredPodReplacesDifferentEarlyPod(t *testing.T) {
	g := newGroup(t, 2, schedtest.PlainNode("small", "2"))
	g.in.Take(schedtest.PlainPod("pod", "1"))
	g.awaitReservations(1, 1)
	g.API.Put(schedtest.PlainNode("large", "4"))
	pod := schedtest.PlainPod("pod", "3")
	g.API.Put(pod)
	g.AwaitBoundOnce(pod)
	if node := g.AwaitBound("pod"); node != "large" {
		t.Errorf("the pod is on %s, want large", node)
	}
	g.awaitConsistent()
}
