package replica

import (
	"errors"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/holder"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// newGroupWithLostLeader starts three replicas with one node of four CPUs, which replica-1 owns. The first leader
// reserves the node for a pod, and stops before it binds the pod.
func newGroupWithLostLeader(t *testing.T, pod *v1.Pod) *group {
	t.Helper()
	g, node := newGroupWithRemoteNode(t, 3)
	placed := pod.DeepCopy()
	placed.Spec.NodeName = node
	reservation := holder.NewReservation(placed, wire.TermKeys{})
	owner := g.ownerOf(node)
	g.Must(owner.Receive("replica-0", &wire.Batch{Reservations: []wire.Reservation{reservation}}))
	if got := owner.holder.Counts().Reservations; got != 1 {
		t.Fatalf("the owner has %d reservations, want 1", got)
	}
	g.replicas[0].stop()
	return g
}

// awaitBoundSoon waits until a pod is bound, for less than the time after which a reservation expires.
func (g *group) awaitBoundSoon(name string) {
	g.T.Helper()
	started := time.Now()
	g.AwaitBound(name)
	if waited := time.Since(started); waited > 4*time.Second {
		g.T.Errorf("pod %s was bound after %v", name, waited)
	}
}

// TestRoomOfDeletedPodOfEarlierLeaderIsFree deletes a pod that an earlier leader placed, while the next leader
// binds it. Its bind fails, and its room is free at once.
func TestRoomOfDeletedPodOfEarlierLeaderIsFree(t *testing.T) {
	pod := schedtest.PlainPod("pod", "4")
	g := newGroupWithLostLeader(t, pod)
	binding, release := make(chan struct{}, 100), make(chan struct{})
	g.API.OnBind = func(p *v1.Pod, _ string) (bool, error) {
		if p.Name != "pod" {
			return true, nil
		}
		binding <- struct{}{}
		<-release
		return false, errors.New("deleted")
	}
	g.lead(1)
	g.API.Put(pod)
	<-binding
	g.API.Remove(pod)
	close(release)
	g.API.Put(schedtest.PlainPod("next", "4"))
	g.awaitBoundSoon("next")
	g.awaitConsistent()
}
