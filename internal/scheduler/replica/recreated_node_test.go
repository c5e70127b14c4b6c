package replica

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	v1 "k8s.io/api/core/v1"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// uidIn returns a UID in a hash slot of a replica. It starts with the given prefix.
func (g *group) uidIn(r *testReplica, prefix string) types.UID {
	for i := 0; ; i++ {
		if uid := types.UID(fmt.Sprint(prefix, "-", i)); g.replicas[0].member.Trusts(r.member.Self(), uid) {
			return uid
		}
	}
}

// awaitNode waits until a replica has a node, or until it does not.
func (g *group) awaitNode(r *testReplica, name string, want bool) {
	g.T.Helper()
	g.Eventually(fmt.Sprintf("%s has node %s: %t", r.member.Self(), name, want), func() error {
		if info, err := r.holder.NodeInfo(name); (err == nil && info.Node() != nil) != want {
			return errors.New("it is not so")
		}
		return nil
	})
}

// TestNodeThatIsCreatedAgain deletes a node and creates it again with another UID, so that another replica owns it. Its
// pod still runs. The replica that watches the pod is slow. No other pod gets the room of this pod.
func TestNodeThatIsCreatedAgain(t *testing.T) {
	g := startReplicasWith(t, func(o *Options) { o.Patience.Deadline = 500 * time.Millisecond }, make([]bool, 3))
	g.lead(0)
	former, next, watcher := g.replicas[0], g.replicas[1], g.replicas[2]
	put := func(r *testReplica, pod *v1.Pod) {
		pod.UID = g.uidIn(r, pod.Name)
		g.API.Put(pod)
	}
	other, first, again := schedtest.PlainNode("other", "1"), schedtest.PlainNode("node", "4"), schedtest.PlainNode("node", "4")
	other.UID, first.UID, again.UID = g.uidIn(watcher, "other"), g.uidIn(former, "first"), g.uidIn(next, "again")
	g.API.Put(other)
	put(next, schedtest.PlainPod("blocker", "1"))
	g.AwaitBound("blocker")
	g.API.Put(first)
	put(watcher, schedtest.PlainPod("occupant", "4"))
	g.AwaitBound("occupant")
	g.awaitConsistent()
	put(former, schedtest.PlainPod("waiting", "4"))
	g.AwaitUnschedulable("waiting")

	g.API.Remove(first)
	g.awaitNode(former, "node", false)
	// The watcher cannot store the change of this pod, and so does not receive the announcement of the node.
	watcher.delayAnswers()
	blocker := g.API.Pod("default/blocker").DeepCopy()
	blocker.Labels = map[string]string{"changed": "true"}
	g.API.Put(blocker)
	time.Sleep(300 * time.Millisecond)
	g.API.Put(again)
	g.awaitNode(next, "node", true)
	g.awaitConsistent()
	// The node has already made the leader try the pod.
	put(former, schedtest.PlainPod("other", "4"))
	g.AwaitUnschedulable("other")
	if node := g.API.Pod("default/waiting").Spec.NodeName; node != "" {
		t.Errorf("the waiting pod is on node %s together with the pod that needs all its CPUs", node)
	}
	g.API.Remove(g.API.Pod("default/occupant"))
	g.Eventually("one pod gets the node", func() error {
		if g.API.Pod("default/waiting").Spec.NodeName == "" && g.API.Pod("default/other").Spec.NodeName == "" {
			return errors.New("none has")
		}
		return nil
	})
	g.awaitConsistent()
}
