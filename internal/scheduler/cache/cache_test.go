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
	whole := schedcache.NewEmptySnapshot()
	nodes, err := NewCluster(whole)
	if err != nil {
		t.Fatal(err)
	}
	return New(nil, nodes, nil), whole
}

func podOn(node, name string) *v1.Pod {
	return st.MakePod().Name(name).UID(name).Node(node).Obj()
}

// TestCacheTellsWhatIsPending checks that pending changes are visible outside of scheduling cycles:
// Upstream's tests wait for the cache to be empty after the last cycle.
func TestCacheTellsWhatIsPending(t *testing.T) {
	logger := klog.Background()
	cache, whole := emptyCache(t)
	node := st.MakeNode().Name("n").Obj()
	cache.AddNode(logger, node)
	if err := cache.AddPod(logger, podOn("n", "first")); err != nil {
		t.Fatal(err)
	}
	if err := cache.UpdateSnapshot(logger, whole); err != nil {
		t.Fatal(err)
	}
	cache.EndCycle(logger)
	if err := cache.AddPod(logger, podOn("n", "second")); err != nil {
		t.Fatal(err)
	}
	if info, err := cache.GetNode("n"); err != nil || len(info.Pods) != 2 {
		t.Errorf("before the next cycle: %v, %v", info, err)
	}
	if err := cache.RemoveNode(logger, node); err != nil {
		t.Fatal(err)
	}
	if nodes := cache.Dump().Nodes; len(nodes) != 1 || nodes["n"].Node() != nil {
		t.Errorf("with pods on a node that is gone: %v", nodes)
	}
	for _, name := range []string{"first", "second"} {
		if err := cache.RemovePod(logger, podOn("n", name)); err != nil {
			t.Fatal(err)
		}
	}
	if nodes := cache.Dump().Nodes; len(nodes) != 0 {
		t.Errorf("with nothing: %v", nodes)
	}
	if _, err := cache.GetNode("n"); err == nil {
		t.Error("a node that is gone is there")
	}
}

// TestCacheSizeIsOurs checks that upstream's gauge reports the size of this cache.
func TestCacheSizeIsOurs(t *testing.T) {
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
		t.Errorf("%v", family)
	}
	t.Error("the gauge does not say that there is one node")
}
