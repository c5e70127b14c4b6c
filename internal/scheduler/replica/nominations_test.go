package replica

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/utils/ptr"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// newGroupWithRemoteNode starts replicas that share one node of four CPUs, whose owner is not the leader. It
// returns the name of the node.
func newGroupWithRemoteNode(t *testing.T, replicas int) (*group, string) {
	t.Helper()
	g := newGroup(t, replicas)
	for i := range 1000 {
		name := fmt.Sprintf("node-%d", i)
		node := schedtest.PlainNode(name, "4")
		if g.replicas[0].member.Trusts("replica-0", node.UID) {
			continue
		}
		g.API.Put(node)
		g.Eventually("the leader knows the owner of the node, and the owner has it", func() error {
			if g.replicas[0].member.NodeOwner(name) == "" {
				return fmt.Errorf("no replica has announced it")
			}
			// The owner holds a new node back until all replicas have confirmed that they have sent their pods on it.
			_, err := g.ownerOf(name).holder.NodeInfo(name)
			return err
		})
		return g, name
	}
	t.Fatal("the leader owns all hash slots")
	return nil, ""
}

// nominate stores a pod that must not be scheduled yet and has a high priority, and nominates it to a node. Its label
// "app" is its name.
func (g *group) nominate(name, cpu, node string) *v1.Pod {
	g.T.Helper()
	pod := schedtest.PlainPod(name, cpu)
	pod.Labels["app"] = name
	pod.Spec.Priority = new(int32)
	*pod.Spec.Priority = 10
	pod.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "test"}}
	g.API.Put(pod)
	g.Eventually("the queue has the pod", func() error {
		for _, queued := range g.Sched.SchedulingQueue.UnschedulablePods() {
			if queued.UID == pod.UID {
				return nil
			}
		}
		return fmt.Errorf("it has %v", g.Sched.SchedulingQueue.UnschedulablePods())
	})
	g.renominate(pod, node)
	return pod
}

// renominate changes the nomination of a pod.
func (g *group) renominate(pod *v1.Pod, node string) {
	g.T.Helper()
	info, err := framework.NewPodInfo(pod)
	g.Must(err)
	g.Sched.SchedulingQueue.AddNominatedPod(klog.Logger{}, info, &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride, NominatedNodeName: node})
}

// checkNominated waits until the owner of a node has this many nominated pods of the leader's queue.
func (g *group) checkNominated(node string, want int) {
	g.T.Helper()
	owner := g.ownerOf(node)
	g.Eventually(fmt.Sprintf("%s has %d nominations", owner.options.Self.Name, want), func() error {
		if got := owner.holder.Counts().Nominations; got != want {
			return fmt.Errorf("it has %d", got)
		}
		return nil
	})
}

// TestWithdrawnNominationIsNotCounted deletes a pod that was nominated to the node of another replica. The
// node then has room for another pod.
func TestWithdrawnNominationIsNotCounted(t *testing.T) {
	g, node := newGroupWithRemoteNode(t, 2)
	urgent := g.nominate("urgent", "4", node)
	small := schedtest.PlainPod("small", "1")
	g.API.Put(small)
	g.AwaitUnschedulable("small")
	g.checkNominated(node, 1)
	resets := schedtest.CounterDelta(t, schedtest.CounterValue("scheduler_replica_link_resets_total", g.ownerOf(node).options.Self.Name))
	g.API.Remove(small)
	g.API.Remove(urgent)
	g.Eventually("the queue is empty", func() error {
		if pending, _ := g.Sched.SchedulingQueue.PendingPods(); len(pending) > 0 {
			return fmt.Errorf("it has %d pods", len(pending))
		}
		return nil
	})
	next := schedtest.PlainPod("next", "1")
	g.API.Put(next)
	g.AwaitBoundOnce(next)
	g.checkNominated(node, 0)
	if n := resets(); n != 0 {
		t.Errorf("the leader's link to the owner of the node was reset %d times, want 0", n)
	}
	g.awaitConsistent()
}

// TestNominationsOfPreviousConnectionAreDropped checks that a holder drops the nominations of a leader when this
// leader has connected again, and that a late withdrawal from another node does not remove a nomination.
func TestNominationsOfPreviousConnectionAreDropped(t *testing.T) {
	g, node := newGroupWithRemoteNode(t, 2)
	owner := g.ownerOf(node)
	pod := schedtest.PlainPod("urgent", "4")
	nominate := wire.Reservation{Nominated: true, UID: pod.UID, Node: node, Pod: wire.MarshalObject(pod)}
	g.Must(owner.Receive("replica-0", &wire.Batch{Reservations: []wire.Reservation{nominate}}))
	g.Must(owner.Receive("replica-0", &wire.Batch{Reservations: []wire.Reservation{{Nominated: true, UID: pod.UID, Node: "another"}}}))
	owner.Connected("replica-1")
	g.checkNominated(node, 1)
	owner.Connected("replica-0")
	g.checkNominated(node, 0)
}

// TestBatchEndsAtOtherPriority has a node with room for only one more pod besides a nominated one. A pod of higher
// priority than the nominated pod may use that room. The next pod has the same class and a lower priority than the
// nominated pod, so the answer for the first pod must not be reused for it.
func TestBatchEndsAtOtherPriority(t *testing.T) {
	g, node := newGroupWithRemoteNode(t, 2)
	g.nominate("nominated", "3900m", node)
	high := schedtest.PlainPod("high", "100m")
	high.Spec.Priority = ptr.To[int32](20)
	g.API.Put(high)
	g.AwaitBound("high")
	g.API.Put(schedtest.PlainPod("low", "100m"))
	g.AwaitUnschedulable("low")
}

// TestBatchEndsAtNomination nominates a pod to a node between two pods of one class. The second one must leave room
// for it.
func TestBatchEndsAtNomination(t *testing.T) {
	g, node := newGroupWithRemoteNode(t, 2)
	g.API.Put(schedtest.PlainPod("first", "100m"))
	g.AwaitBound("first")
	g.nominate("nominated", "3900m", node)
	g.API.Put(schedtest.PlainPod("second", "100m"))
	g.AwaitUnschedulable("second")
}
