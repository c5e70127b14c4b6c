package replica

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/intake"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// newShared starts three replicas with eight nodes of four CPUs.
func newShared(t *testing.T) *ensemble {
	var nodes []*v1.Node
	for i := range 8 {
		nodes = append(nodes, schedtest.PlainNode(fmt.Sprintf("node-%d", i), "4"))
	}
	return newEnsemble(t, 3, nodes...)
}

// TestEarlyPodsOfReplicas checks that early pods get reservations before they are stored, are bound
// when they are, and count once.
func TestEarlyPodsOfReplicas(t *testing.T) {
	e := newShared(t)
	byWebhook, byWatch := schedtest.Counts(t, schedtest.MetricWith("scheduler_intake_pods_total", "webhook")), schedtest.Counts(t, schedtest.MetricWith("scheduler_intake_pods_total", "watch"))
	var pods []*v1.Pod
	for i := range 20 {
		pods = append(pods, schedtest.PlainPod(fmt.Sprintf("pod-%d", i), "1"))
		e.in.Take(pods[i].DeepCopy())
	}
	e.placed(len(pods), len(pods))
	if bound := len(e.API.Binds); bound != 0 {
		t.Fatalf("%d pods are bound before they are stored", bound)
	}
	for _, pod := range pods {
		e.API.Put(pod)
	}
	for _, pod := range pods {
		e.BoundOnce(pod)
	}
	e.holds()
	if byWebhook() != len(pods) || byWatch() != 0 {
		t.Errorf("%d by the webhook, %d by the watch", byWebhook(), byWatch())
	}
}

// TestNeverStoredWithReplicas checks that the reservation of a pod that is never stored is
// released, so that another pod gets the capacity.
func TestNeverStoredWithReplicas(t *testing.T) {
	e := newEnsemble(t, 2, schedtest.PlainNode("node", "4"))
	refused, next := schedtest.PlainPod("refused", "4"), schedtest.PlainPod("next", "4")
	e.in.Take(refused)
	e.placed(1, 1)
	e.API.Put(next)
	e.AwaitRefusal("next")
	e.clock.Step(intake.EarlyExpiry + intake.SweepInterval)
	e.BoundOnce(next)
	e.holds()
}

// TestLeaderDiesWithEarlyPods checks that the next leader binds early pods that were stored, and
// that the reservations of the others expire.
func TestLeaderDiesWithEarlyPods(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes as long as places are kept that a leader has left behind")
	}
	e := newShared(t)
	stored, refused := schedtest.PlainPod("stored", "1"), schedtest.PlainPod("refused", "4")
	e.in.Take(stored.DeepCopy())
	e.in.Take(refused)
	e.placed(2, 2)
	e.all[0].withdraw()
	e.all[0].stop()
	e.API.Put(stored)
	e.lead(1)
	e.BoundOnce(stored)
	e.holds()
	e.in.Take(schedtest.PlainPod("later", "1"))
	if early, _ := e.in.Remembered(); early != 1 {
		t.Error("the next leader takes nothing in")
	}
}

// TestEarlyPodChangesOnTheWay stores a pod that does not fit where it was placed: it is placed
// elsewhere, and the first reservation is released.
func TestEarlyPodChangesOnTheWay(t *testing.T) {
	e := newEnsemble(t, 2, schedtest.PlainNode("small", "2"))
	e.in.Take(schedtest.PlainPod("pod", "1"))
	e.placed(1, 1)
	e.API.Put(schedtest.PlainNode("large", "4"))
	pod := schedtest.PlainPod("pod", "3")
	e.API.Put(pod)
	e.BoundOnce(pod)
	if node := e.AwaitNode("pod"); node != "large" {
		t.Errorf("it is on %s", node)
	}
	e.holds()
}
