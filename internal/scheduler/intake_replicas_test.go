package scheduler

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// newShared is three replicas with eight nodes of four cores.
func newShared(t *testing.T) *ensemble {
	var nodes []*v1.Node
	for i := range 8 {
		nodes = append(nodes, plainNode(fmt.Sprintf("node-%d", i), "4"))
	}
	return newEnsemble(t, 3, nodes...)
}

// TestEarlyPodsOfReplicas: pods that are handed to the leader get their places with the
// owners of nodes before they are stored, are bound when they are, and count once.
func TestEarlyPodsOfReplicas(t *testing.T) {
	e := newShared(t)
	byWebhook, byWatch := counts(t, takenFrom(sourceWebhook)), counts(t, takenFrom(sourceWatch))
	var pods []*v1.Pod
	for i := range 20 {
		pods = append(pods, plainPod(fmt.Sprintf("pod-%d", i), "1"))
		e.in.Take(pods[i].DeepCopy())
	}
	e.placed(len(pods), len(pods))
	if bound := len(e.api.binds); bound != 0 {
		t.Fatalf("%d pods are bound before they are stored", bound)
	}
	for _, pod := range pods {
		e.api.put(pod)
	}
	for _, pod := range pods {
		e.boundOnce(pod)
	}
	e.holds()
	if byWebhook() != len(pods) || byWatch() != 0 {
		t.Errorf("%d by the webhook, %d by the watch", byWebhook(), byWatch())
	}
}

// TestNeverStoredWithReplicas: a place that was reserved for a pod that is then refused is
// free again at its owner, and another pod gets it.
func TestNeverStoredWithReplicas(t *testing.T) {
	e := newEnsemble(t, 2, plainNode("node", "4"))
	refused, next := plainPod("refused", "4"), plainPod("next", "4")
	e.in.Take(refused)
	e.placed(1, 1)
	e.api.put(next)
	e.awaitRefusal("next")
	e.clock.Step(earlyExpiry + sweepInterval)
	e.boundOnce(next)
	e.holds()
}

// TestLeaderDiesWithEarlyPods: the next leader knows nothing of them. What was stored after
// all it hears of by the watch, and the places of the others are free before long.
func TestLeaderDiesWithEarlyPods(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes as long as places are kept that a leader has left behind")
	}
	e := newShared(t)
	stored, refused := plainPod("stored", "1"), plainPod("refused", "4")
	e.in.Take(stored.DeepCopy())
	e.in.Take(refused)
	e.placed(2, 2)
	e.all[0].disappear()
	e.all[0].stop()
	e.api.put(stored)
	e.lead(1)
	e.boundOnce(stored)
	e.holds()
	if e.in.Take(plainPod("later", "1")); len(e.in.early) != 1 {
		t.Error("the next leader takes nothing in")
	}
}

// TestEarlyPodChangesOnTheWay: what is stored does not fit where the pod was placed, and
// goes elsewhere; the first place is given back.
func TestEarlyPodChangesOnTheWay(t *testing.T) {
	e := newEnsemble(t, 2, plainNode("small", "2"))
	e.in.Take(plainPod("pod", "1"))
	e.placed(1, 1)
	e.api.put(plainNode("large", "4"))
	pod := plainPod("pod", "3")
	e.api.put(pod)
	e.boundOnce(pod)
	if node := e.awaitNode("pod"); node != "large" {
		t.Errorf("it is on %s", node)
	}
	e.holds()
}
