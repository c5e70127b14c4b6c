package attach_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

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

// ownState is an out-of-tree plugin that keeps the UID of the pod and the number of nodes in the cycle state, and filters no
// node.
type ownState struct{ suffixFilter }

func (ownState) Name() string { return "OwnState" }

// PreFilter writes the state, and skips Filter.
func (o ownState) PreFilter(_ context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	state.Write(fwk.StateKey(o.Name()), prefiltered{pod.UID, len(nodes)})
	return nil, fwk.NewStatus(fwk.Skip)
}

// PreFilterExtensions returns none.
func (ownState) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// prefiltered is what ownState knows of a pod.
type prefiltered struct {
	uid   types.UID
	nodes int
}

// Clone returns the state, which does not change.
func (p prefiltered) Clone() fwk.StateData { return p }

// TestForeignPreFilterKeepsItsState schedules pods of one class. The cycle state of each has what the plugin wrote for this pod, not
// for the first one of the class: Reserve and Permit read it. The plugin has seen all nodes.
func TestForeignPreFilterKeepsItsState(t *testing.T) {
	f := schedtest.NewWithFilter(t, []*v1.Node{schedtest.PlainNode("node-0", "32"), schedtest.PlainNode("node-1", "32")}, ownState{})
	f.Eventually("the cache has all nodes", func() error {
		if n := f.Sched.Cache.NodeCount(); n != 2 {
			return fmt.Errorf("it has %d", n)
		}
		return nil
	})
	f.Refresh()
	for i := range 3 {
		pod := schedtest.PlainPod(fmt.Sprint("pod-", i), "1")
		info, err := framework.NewPodInfo(pod)
		f.Must(err)
		state := framework.NewCycleState()
		_, err = f.Sched.SchedulePod(f.Ctx, f.Sched.Profiles[v1.DefaultSchedulerName], state, &framework.QueuedPodInfo{PodInfo: info})
		f.Must(err)
		if got, err := state.Read("OwnState"); err != nil || got != (prefiltered{pod.UID, 2}) {
			t.Errorf("%s: the cycle state has %v, %v, want the UID %s and 2 nodes", pod.Name, got, err, pod.UID)
		}
	}
	if f.Ranker.FallbackCount != 0 {
		t.Errorf("%d full scans, the last because of %q", f.Ranker.FallbackCount, f.Ranker.LastFallback)
	}
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
