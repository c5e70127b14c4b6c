package cache

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// podWithKeys returns a pod on a node. The selector of its affinity term refers to a number of labels of its own.
func podWithKeys(name, node string, keys int) *v1.Pod {
	var selector metav1.LabelSelector
	for i := range keys {
		selector.MatchExpressions = append(selector.MatchExpressions, metav1.LabelSelectorRequirement{
			Key: fmt.Sprint(name, "-", i), Operator: metav1.LabelSelectorOpExists,
		})
	}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: v1.PodSpec{NodeName: node, Affinity: &v1.Affinity{}}}
	pod.Spec.Affinity.PodAffinity = &v1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []v1.WeightedPodAffinityTerm{{
		Weight: 1, PodAffinityTerm: v1.PodAffinityTerm{TopologyKey: v1.LabelHostname, LabelSelector: &selector},
	}}}
	return pod
}

// rebuilds runs scheduling cycles, and returns how many of them rebuild the index.
func (c *Cluster) rebuilds(cycles int, during func(cycle int)) (rebuilds int) {
	for cycle := range cycles {
		before := c.Index
		c.Apply(klog.Logger{}, nil)
		if c.Index != before {
			rebuilds++
		}
		during(cycle)
	}
	return rebuilds
}

// TestNamesInUseCauseNoRebuild has more names in use than the usual limit: those of pods on nodes, and those of classes
// that refer to labels of which each node has another value. They cause at most one rebuild.
func TestNamesInUseCauseNoRebuild(t *testing.T) {
	c := newTestCluster(t)
	c.SpareNames = 100
	const nodes = 200
	var operations []operation
	for i := range nodes {
		labels := map[string]string{"id": fmt.Sprint("i", i), "serial": fmt.Sprint("s", i)}
		operations = append(operations, operation{node: labelledNode(fmt.Sprint("node-", i), labels)})
	}
	c.Apply(klog.Logger{}, operations)
	c.rebuilds(2*returnCycles, func(int) {})
	for i := range 3 {
		c.Apply(klog.Logger{}, []operation{{add: podWithKeys(fmt.Sprint("pod-", i), "node-0", 1000)}})
	}
	// The classes alternate.
	rebuilds := c.rebuilds(10*returnCycles, func(cycle int) {
		key := []string{"id", "serial"}[cycle%2]
		c.ReferToLabels([]string{key})
		for _, n := range c.Nodes {
			c.Names.Value(n.Info.Node().Labels, key)
		}
	})
	if names := c.Names.len(); names < 2*(nodes+3)+c.SpareNames {
		t.Fatalf("%d names are in use, want more than the usual limit", names)
	}
	if rebuilds > 1 {
		t.Errorf("%d rebuilds, want at most one", rebuilds)
	}
}

// TestUnusedNamesAreForgotten removes the pods whose names raised the limit. Their names are forgotten, and the limit
// is the usual one again.
func TestUnusedNamesAreForgotten(t *testing.T) {
	c := newTestCluster(t)
	c.SpareNames = 100
	pod := podWithKeys("pod", "node", 1000)
	c.Apply(klog.Logger{}, []operation{{node: labelledNode("node", nil)}, {add: pod}})
	c.rebuilds(2*returnCycles, func(int) {})
	c.Apply(klog.Logger{}, []operation{{remove: pod}})
	refer := func(cycle int) { c.ReferToLabels([]string{fmt.Sprint("key-", cycle)}) }
	if rebuilds := c.rebuilds(4000, refer); rebuilds == 0 {
		t.Error("the index was not rebuilt, although most names were unused")
	}
	if got, most := c.Names.len(), 2*(returnCycles+c.SpareNames); got > most {
		t.Errorf("%d names are remembered, want at most %d", got, most)
	}
}
