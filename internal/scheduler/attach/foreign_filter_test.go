package attach_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// suffixFilter is an out-of-tree filter that accepts nodes by the ends of their names.
type suffixFilter struct{ accepted string }

func (suffixFilter) Name() string { return "SuffixFilter" }

// Filter accepts a node whose name ends with one of the accepted characters.
func (s suffixFilter) Filter(_ context.Context, _ fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	name := node.Node().Name
	if strings.Contains(s.accepted, name[len(name)-1:]) {
		return nil
	}
	return fwk.NewStatus(fwk.Unschedulable, "the name has another end")
}

// TestForeignFilterIsAskedInOrderOfRank schedules pods with an out-of-tree filter that accepts half of the nodes. The pods are spread
// over these nodes evenly, because each goes to the node with the most free resources, and no full scan is made.
func TestForeignFilterIsAskedInOrderOfRank(t *testing.T) {
	var nodes []*v1.Node
	for i := range 20 {
		nodes = append(nodes, schedtest.PlainNode(fmt.Sprint("node-", i), "32"))
	}
	f := schedtest.NewWithFilter(t, nodes, suffixFilter{"02468"})
	f.Eventually("the cache has all nodes", func() error {
		if n := f.Sched.Cache.NodeCount(); n != len(nodes) {
			return fmt.Errorf("it has %d", n)
		}
		return nil
	})
	f.Refresh()
	for i := range 20 {
		f.ScheduleAndAssume(schedtest.PlainPod(fmt.Sprint("pod-", i), "1"))
	}
	for i, node := range nodes {
		if got, want := len(f.NodeInfo(node.Name).Pods), 2-i%2*2; got != want {
			t.Errorf("%s has %d pods, want %d", node.Name, got, want)
		}
	}
	if f.Ranker.FallbackCount != 0 || f.Ranker.AskedCount != 20 {
		t.Errorf("%d full scans (the last because of %q) and %d lazy decisions, want none and 20", f.Ranker.FallbackCount, f.Ranker.LastFallback, f.Ranker.AskedCount)
	}
}
