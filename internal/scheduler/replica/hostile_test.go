package replica

import (
	"errors"
	"hash/fnv"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// newGroupWithWaitingPod starts three replicas, of which the first leads and the second owns a node that is full. The
// second watches a pod that waits for room. It returns this pod, and the name of the third replica. It calls onAttempt
// after each attempt to schedule a pod.
func newGroupWithWaitingPod(t *testing.T, onAttempt func(*v1.Pod, error)) (g *group, waiting *v1.Pod, hostile string) {
	t.Helper()
	g = startReplicas(t, make([]bool, 3))
	g.replicas[0].onAttempt(onAttempt)
	g.lead(0)
	owner := g.replicas[1]
	node, occupant := schedtest.PlainNode("node", "4"), schedtest.PlainPod("occupant", "4")
	waiting = schedtest.PlainPod("waiting", "4")
	node.UID, occupant.UID, waiting.UID = g.uidIn(owner, "node"), g.uidIn(owner, "occupant"), g.uidIn(owner, "waiting")
	g.API.Put(node)
	g.API.Put(occupant)
	g.AwaitBound("occupant")
	g.awaitConsistent()
	g.API.Put(waiting)
	g.AwaitUnschedulable("waiting")
	return g, g.API.Pod("default/waiting").DeepCopy(), g.replicas[2].member.Self()
}

// TestReplicaCannotRemovePodsOfOthers has a replica report changes of a pending pod that it does not watch. The pod stays
// in the queue.
func TestReplicaCannotRemovePodsOfOthers(t *testing.T) {
	g, waiting, hostile := newGroupWithWaitingPod(t, func(*v1.Pod, error) {})
	on := func(node string) []byte {
		pod := waiting.DeepCopy()
		pod.Spec.NodeName = node
		return wire.MarshalObject(pod)
	}
	other := waiting.DeepCopy()
	other.UID = g.uidIn(g.replicas[2], "other")
	for name, event := range map[string]wire.Event{
		"bound":                           {Before: on(""), After: on("node")},
		"bound to a node of the sender":   {Before: on(""), After: on("other")},
		"deleted":                         {Before: on("")},
		"deleted, from a node of another": {Before: on("node")},
		"another pod of that name":        {Before: wire.MarshalObject(other), After: on("node")},
	} {
		if err := g.replicas[0].Receive(hostile, &wire.Batch{Events: []wire.Event{event}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if pending, _ := g.Sched.SchedulingQueue.PendingPods(); len(pending) != 1 {
			t.Errorf("%s: %d pods are in the queue, want 1", name, len(pending))
		}
	}
	for name, b := range map[string]*wire.Batch{
		"pending": {Pending: []wire.Item{{UID: other.UID, Object: on("")}}}, "bound": {Pods: []wire.Item{{UID: other.UID, Object: on("node")}}},
	} {
		if err := g.replicas[0].Receive(hostile, b); err == nil {
			t.Errorf("%s pod in a message about another UID: no error", name)
		}
	}
	g.API.Put(schedtest.PlainNode("large", "16"))
	g.AwaitBound("waiting")
	g.awaitConsistent()
}

// TestReplicaCannotTakeNodesOfOthers has a replica announce the name of another one's node in a hash slot of its own, and
// report the deletion of the node. The waiting pod does not get the room of the occupant.
func TestReplicaCannotTakeNodesOfOthers(t *testing.T) {
	g, _, hostile := newGroupWithWaitingPod(t, func(*v1.Pod, error) {})
	h := fnv.New64a()
	h.Write([]byte("node"))
	own := int16(membership.SlotOf(g.uidIn(g.replicas[2], "own")))
	gone := wire.NodeName{Hash: h.Sum64(), Slot: int16(membership.SlotOf(g.API.Nodes()[0].UID)), Created: g.API.Nodes()[0].CreationTimestamp.Unix()}
	announced := wire.NodeName{Hash: h.Sum64(), Slot: own, Created: time.Now().Add(time.Hour).Unix()}
	for _, r := range g.replicas {
		for _, b := range []*wire.Batch{{GoneNodes: []wire.NodeName{gone}}, {Nodes: []wire.NodeName{announced}}} {
			g.Must(r.Receive(hostile, b))
		}
		if owner := r.member.NodeOwner("node"); owner != g.replicas[1].member.Self() {
			t.Errorf("%s takes %s for the owner of the node", r.member.Self(), owner)
		}
	}
	// Every replica still knows the pods on the node.
	g.awaitConsistent()
	g.API.Remove(g.API.Pod("default/occupant"))
	g.AwaitBound("waiting")
	g.awaitConsistent()
}

// TestUnverifiedEventRetriesPods has a replica report a change that the leader cannot verify, as after an assignment that
// only one of them follows. A pod that fits by now is retried.
func TestUnverifiedEventRetriesPods(t *testing.T) {
	var attempts atomic.Int64
	g, waiting, other := newGroupWithWaitingPod(t, func(*v1.Pod, error) { attempts.Add(1) })
	before := attempts.Load()
	waiting.Spec.NodeName = "node"
	g.Must(g.replicas[0].Receive(other, &wire.Batch{Events: []wire.Event{{Before: wire.MarshalObject(waiting)}}}))
	g.Eventually("the waiting pod is retried", func() error {
		if attempts.Load() == before {
			return errors.New("no attempt")
		}
		return nil
	})
}

// TestEarlierReservationsOfOthersAreIgnored has a replica report the reservation of an earlier leader on a node of another
// owner. The leader does not keep it.
func TestEarlierReservationsOfOthersAreIgnored(t *testing.T) {
	g, waiting, hostile := newGroupWithWaitingPod(t, func(*v1.Pod, error) {})
	leader, a := g.replicas[0].leader, g.replicas[0].member.Assignment()
	for from, want := range map[string]string{hostile: "", g.replicas[1].member.Self(): "node"} {
		leader.HandleStatus(from, &wire.Status{})
		leader.HandleStatus(from, &wire.Status{Term: a.Term, Number: a.Number, Earlier: []wire.EarlierReservation{{UID: waiting.UID, Node: "node"}}})
		if got := leader.Earlier(waiting.UID); got != want {
			t.Errorf("Earlier() = %q after a report of %s, want %q", got, from, want)
		}
		leader.ReleaseEarlier(waiting.UID)
	}
}
