package member

import (
	"testing"
	"time"

	"k8s.io/klog/v2"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/holder"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// TestReportAndDropNodesDoNotDeadlock sends status reports while pods of lost nodes are removed. Removal
// holds the lock of the holder and asks the member for the owner of a node. So a report must not call the
// holder while it holds the lock of the member.
func TestReportAndDropNodesDoNotDeadlock(t *testing.T) {
	f := schedtest.NewScripted(t, schedtest.NewAPI())
	nodes := f.Sched.Cache.(*cache.Cache)
	nodes.AddNode(klog.Logger{}, schedtest.PlainNode("node", "4"))
	m := newTestMember(t, holder.New(klog.Logger{}, f.Ranker, nodes), "self")
	m.pods.synced.Store(true)
	m.nodes.synced.Store(true)
	pod := schedtest.PlainPod("pod", "1")
	pod.Spec.NodeName = "node"
	m.holder.SetPod(pod, yes, yes)
	done := make(chan struct{}, 2)
	for _, call := range []func(){func() { m.report("") }, func() { m.holder.DropNodes(nil, m.ownsNode) }} {
		go func() {
			for range 20_000 {
				call()
			}
			done <- struct{}{}
		}()
	}
	for range 2 {
		select {
		case <-done:
		case <-time.After(schedtest.Patience):
			t.Fatal("a status report and the removal of pods wait for each other")
		}
	}
}

func yes() bool { return true }
