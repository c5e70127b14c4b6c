package replica

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/core"
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
	reservation := core.NewReservation(placed, wire.TermKeys{})
	owner := g.ownerOf(node)
	g.Must(owner.Receive("replica-0", &wire.Batch{Reservations: []wire.Reservation{reservation}}))
	if got := owner.holder.Counts().Reservations; got != 1 {
		t.Fatalf("the owner has %d reservations, want 1", got)
	}
	g.replicas[0].stop()
	return g
}

// keepPending makes the API server answer that a pod is pending, although no watch shows it. Otherwise its reservation
// expires 5 s after the owner knows the next leader, which is little more than the time that this leader waits for the lost
// one.
func (g *group) keepPending(pod *v1.Pod) {
	g.T.Helper()
	g.eachClient(func(client kubernetes.Interface) error {
		client.(*fake.Clientset).PrependReactor("get", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
			return action.(clienttesting.GetAction).GetName() == pod.Name, pod.DeepCopy(), nil
		})
		return nil
	})
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

// TestPreemptionDoesNotDeletePendingPod has an earlier leader reserve the only node for a pod, and stop before the
// bind. A pod of higher priority must not make the next leader delete the pending pod. It evicts the pod once that
// pod is bound.
func TestPreemptionDoesNotDeletePendingPod(t *testing.T) {
	low := schedtest.PlainPod("low", "4")
	g := newGroupWithLostLeader(t, low)
	var bound atomic.Bool
	g.API.OnBind = func(p *v1.Pod, _ string) (bool, error) {
		if p.Name == "low" {
			bound.Store(true)
		}
		return true, nil
	}
	g.API.Put(low)
	g.API.Put(urgentPod("urgent", "4"))
	g.lead(1)
	g.awaitBoundSoon("urgent")
	if g.API.Pod("default/low") != nil || !bound.Load() {
		t.Errorf("pod low: bound %t, exists %t; want it evicted after it was bound", bound.Load(), g.API.Pod("default/low") != nil)
	}
	g.awaitConsistent()
}

// TestPodOfEarlierLeaderComesFirst has an earlier leader reserve the only node for a pod, and many pods of a higher priority
// wait for that node. The next leader must place the pod before it has tried all of them: each retry of these pods would
// delay the pod again, and they wait for its bind.
func TestPodOfEarlierLeaderComesFirst(t *testing.T) {
	const urgent = 500
	low := schedtest.PlainPod("low", "4")
	g := newGroupWithLostLeader(t, low)
	g.API.Put(low)
	never := v1.PreemptNever
	for i := range urgent {
		// Pods with different requests do not share the answer to a query.
		pod := urgentPod(fmt.Sprintf("urgent-%d", i), fmt.Sprintf("%dm", 3000+i))
		pod.Spec.PreemptionPolicy = &never
		g.API.Put(pod)
	}
	r := g.replicas[1]
	var before, placed atomic.Int64
	r.onAttempt(func(pod *v1.Pod, err error) {
		switch {
		case pod.Name == "low" && err == nil:
			placed.Add(1)
		case placed.Load() == 0:
			before.Add(1)
		}
	})
	g.lead(1)
	g.AwaitBound("low")
	if n := before.Load(); n > urgent/2 {
		t.Errorf("%d attempts to schedule urgent pods preceded the pod of the earlier leader, want it among the first", n)
	}
}

// TestUnknownPodOfEarlierLeaderIsSettled has a leader learn that a pod of an earlier leader was bound or deleted, before
// it learns that the pod was pending. Until it forgets the reservation, the pod blocks preemption on its node.
func TestUnknownPodOfEarlierLeaderIsSettled(t *testing.T) {
	for name, bound := range map[string]bool{"bound": true, "deleted": false} {
		t.Run(name, func(t *testing.T) {
			pod := schedtest.PlainPod("pod", "4")
			g := newGroupWithLostLeader(t, pod)
			g.keepPending(pod)
			g.lead(1)
			r := g.replicas[1]
			node := r.leader.Earlier(pod.UID)
			if node == "" {
				t.Fatal("the leader does not know the reservation of the earlier leader")
			}
			item, wantReserved := &wire.Item{UID: pod.UID}, 0
			if bound {
				item.Node, wantReserved = node, 1
			}
			g.Must(r.leader.HandlePending(item))
			if r.leader.IsUnsettled(pod.UID) {
				t.Error("the pod is unsettled, want it settled")
			}
			g.awaitReservations(0, wantReserved)
		})
	}
}
