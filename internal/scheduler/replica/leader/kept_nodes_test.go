package leader

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// TestNodesOfAssumedPodsAreKept chooses many nodes while a pod is being bound. Plugins look up the node of this pod.
func TestNodesOfAssumedPodsAreKept(t *testing.T) {
	pod := schedtest.PlainPod("pod", "1")
	pod.Spec.NodeName = "node"
	l := newTestLeader(t)
	assume := func(pod *v1.Pod) {
		if err := l.assumptions.AssumePod(l.logger, pod); err != nil {
			t.Fatal(err)
		}
	}
	assume(pod)
	l.KeepNode(schedtest.PlainNode("node", "1"))
	for i := range 2*maxKeptNodes + 1 {
		name := fmt.Sprintf("node-%d", i)
		l.KeepNode(schedtest.PlainNode(name, "1"))
		for _, kept := range []string{"node", name} {
			if _, found, _ := l.nodeEvents.indexer.GetByKey(kept); !found {
				t.Fatalf("node %s is not kept after %d others", kept, i+1)
			}
		}
	}
	if n := len(l.nodeEvents.indexer.ListKeys()); n > maxKeptNodes {
		t.Errorf("%d nodes are kept, want at most %d", n, maxKeptNodes)
	}
	for i := range maxKeptNodes {
		other := schedtest.PlainPod(fmt.Sprintf("pod-%d", i), "1")
		other.Spec.NodeName = fmt.Sprintf("used-%d", i)
		assume(other)
		l.KeepNode(schedtest.PlainNode(other.Spec.NodeName, "1"))
	}
	l.KeepNode(schedtest.PlainNode("last", "1"))
	for i := range maxKeptNodes {
		if _, found, _ := l.nodeEvents.indexer.GetByKey(fmt.Sprintf("used-%d", i)); !found {
			t.Fatalf("node used-%d of an assumed pod is not kept", i)
		}
	}
}
