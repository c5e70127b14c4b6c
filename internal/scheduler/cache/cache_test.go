package cache

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
	schedcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	st "k8s.io/kubernetes/pkg/scheduler/testing"
)

func emptyCache(t *testing.T) (*Cache, *schedcache.Snapshot) {
	t.Helper()
	snapshot := schedcache.NewEmptySnapshot()
	cluster, err := NewCluster(snapshot)
	if err != nil {
		t.Fatal(err)
	}
	return New(nil, cluster, nil), snapshot
}

func podOn(node, name string) *v1.Pod {
	return st.MakePod().Name(name).UID(name).Node(node).Obj()
}

// TestPendingChangesAreVisibleBetweenCycles checks that GetNode and Dump include pending changes
// while no scheduling cycle runs. This is necessary because upstream's tests wait, after the last
// cycle, until the cache is empty.
func TestPendingChangesAreVisibleBetweenCycles(t *testing.T) {
	logger := klog.Background()
	cache, snapshot := emptyCache(t)
	node := st.MakeNode().Name("n").Obj()
	cache.AddNode(logger, node)
	if err := cache.AddPod(logger, podOn("n", "first")); err != nil {
		t.Fatal(err)
	}
	if err := cache.UpdateSnapshot(logger, snapshot); err != nil {
		t.Fatal(err)
	}
	cache.EndCycle(logger)
	if err := cache.AddPod(logger, podOn("n", "second")); err != nil {
		t.Fatal(err)
	}
	if info, err := cache.GetNode("n"); err != nil || len(info.Pods) != 2 {
		t.Errorf("GetNode() after adding a pod = %v, %v, want a node with 2 pods", info, err)
	}
	if err := cache.RemoveNode(logger, node); err != nil {
		t.Fatal(err)
	}
	if nodes := cache.Dump().Nodes; len(nodes) != 1 || nodes["n"].Node() != nil {
		t.Errorf("Dump().Nodes after deleting the node = %v, want its pods without a node", nodes)
	}
	for _, name := range []string{"first", "second"} {
		if err := cache.RemovePod(logger, podOn("n", name)); err != nil {
			t.Fatal(err)
		}
	}
	if nodes := cache.Dump().Nodes; len(nodes) != 0 {
		t.Errorf("Dump().Nodes after deleting the pods = %v, want none", nodes)
	}
	if _, err := cache.GetNode("n"); err == nil {
		t.Error("GetNode() of the deleted node succeeded, want an error")
	}
}

// TestNodeThatWasCreatedAgain passes changes of a deleted node after the node of the same name that has replaced it: two
// watches deliver them, and one is behind the other.
func TestNodeThatWasCreatedAgain(t *testing.T) {
	logger := klog.Background()
	version := func(uid, version, cpu string) *v1.Node {
		node := st.MakeNode().Name("n").UID(uid).Capacity(map[v1.ResourceName]string{v1.ResourceCPU: cpu}).Obj()
		node.ResourceVersion = version
		return node
	}
	cache, snapshot := emptyCache(t)
	cache.AddNode(logger, version("old", "5", "1"))
	cache.AddNode(logger, version("new", "10", "2"))
	cache.UpdateNode(logger, nil, version("old", "7", "3"))
	if err := cache.RemoveNode(logger, version("old", "9", "3")); err == nil {
		t.Error("RemoveNode() of the old node succeeded, want an error")
	}
	if err := cache.UpdateSnapshot(logger, snapshot); err != nil {
		t.Fatal(err)
	}
	cache.EndCycle(logger)
	info, err := cache.GetNode("n")
	if err != nil || info.Node() == nil || info.Node().UID != "new" || info.Allocatable.GetMilliCPU() != 2000 {
		t.Errorf("GetNode() = %v, %v, want the new node with 2 cores", info, err)
	}
	// The store was restored from a backup, and an informer of all nodes has the node with yet another UID.
	cache.UpdateNode(logger, version("new", "10", "2"), version("restored", "8", "1"))
	if err := cache.RemoveNode(logger, version("restored", "8", "1")); err != nil {
		t.Errorf("RemoveNode() of the restored node = %v", err)
	}
	cache.AddNode(logger, version("new", "11", "4"))
	if err := cache.RemoveNode(logger, version("new", "12", "4")); err != nil || cache.NodeCount() != 0 {
		t.Errorf("RemoveNode() of the new node = %v, %d nodes left, want none", err, cache.NodeCount())
	}
}

// TestGaugeReportsSizeOfThisCache checks that upstream's gauge scheduler_cache_size reports this
// cache, not upstream's.
func TestGaugeReportsSizeOfThisCache(t *testing.T) {
	TakeCacheSize()
	cache, _ := emptyCache(t)
	cache.AddNode(klog.Background(), st.MakeNode().Name("n").Obj())
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "scheduler_cache_size" {
			continue
		}
		for _, metric := range family.GetMetric() {
			if metric.GetLabel()[0].GetValue() == "nodes" && metric.GetGauge().GetValue() == 1 {
				return
			}
		}
		t.Errorf("scheduler_cache_size = %v, want 1 node", family)
	}
	t.Error("scheduler_cache_size does not report 1 node")
}
