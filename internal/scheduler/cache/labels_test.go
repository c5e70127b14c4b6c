package cache

import (
	"fmt"
	"math/rand/v2"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	schedcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
)

func newTestCluster(t testing.TB) *Cluster {
	t.Helper()
	c, err := NewCluster(schedcache.NewEmptySnapshot())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func labelledNode(name string, labels map[string]string) *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
}

// TestLabelKeysAreForgotten refers to many labels, as anybody can who creates pods. The number of remembered
// keys is bounded.
func TestLabelKeysAreForgotten(t *testing.T) {
	c := newTestCluster(t)
	c.SpareNames, c.ReturnCycles = 100, 5
	c.Apply(klog.Logger{}, []operation{{node: labelledNode("node", map[string]string{"disk": "ssd"})}})
	for i := range 1000 {
		c.ReferToLabels([]string{fmt.Sprint("key-", i)})
		c.Apply(klog.Logger{}, nil)
	}
	if got, most := len(c.Names.labels), 2*c.SpareNames; got > most {
		t.Errorf("%d label keys are remembered, want at most %d", got, most)
	}
	c.ReferToLabels([]string{"disk"})
	if got := c.Names.ShapeOf[c.Nodes["node"].Shape].Labels["disk"]; got != "ssd" {
		t.Errorf("label disk in the node's shape = %q, want ssd", got)
	}
}

// TestLabelsThatDifferOnEachNodeAreFound has nodes with a label of their own and with one of few values. It notices when nodes are
// added.
func TestLabelsThatDifferOnEachNodeAreFound(t *testing.T) {
	c := newTestCluster(t)
	add := func(from, to int) {
		var operations []operation
		for i := from; i < to; i++ {
			operations = append(operations, operation{node: labelledNode(fmt.Sprint("node-", i), map[string]string{"own": fmt.Sprint(i), "rack": fmt.Sprint(i % 50)})})
		}
		c.Apply(klog.Logger{}, operations)
	}
	for _, step := range []struct {
		from, to int
		want     bool
	}{{0, 500, false}, {500, 1200, true}, {1200, 2500, true}} {
		add(step.from, step.to)
		if own, rack := c.IsPerNode("own"), c.IsPerNode("rack"); own != step.want || rack {
			t.Errorf("with %d nodes, IsPerNode() = %t for a label of each node and %t for racks, want %t and false", step.to, own, rack, step.want)
		}
	}
	if c.IsPerNode(v1.LabelTopologyZone) || !c.IsPerNode(v1.LabelHostname) {
		t.Error("IsPerNode() is true for zones or false for hostnames")
	}
}

// TestShapesHaveReferencedLabels changes nodes and refers to labels in random order. Each node then has the shape
// that is computed from its labels.
func TestShapesHaveReferencedLabels(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	c := newTestCluster(t)
	c.SpareNames, c.ReturnCycles = 500, 50
	label := func() string { return fmt.Sprint("key-", random.IntN(60)) }
	for step := range 4000 {
		name := fmt.Sprint("node-", random.IntN(20))
		switch random.IntN(8) {
		case 0:
			c.ReferToLabels([]string{label(), v1.LabelHostname})
		case 1:
			if n := c.Nodes[name]; n != nil {
				c.Apply(klog.Logger{}, []operation{{node: n.Info.Node(), gone: true}})
			}
		default:
			labels := map[string]string{}
			for range random.IntN(5) {
				labels[label()] = fmt.Sprint(random.IntN(2))
			}
			c.Apply(klog.Logger{}, []operation{{node: labelledNode(name, labels)}})
		}
		for name, n := range c.Nodes {
			if want := c.Names.shape(n.Info); n.Shape != want {
				t.Fatalf("step %d: node %s with labels %v has shape %d, want %d", step, name, n.Info.Node().Labels, n.Shape, want)
			}
		}
	}
	for label, nodes := range c.labelled {
		if most := 2*nodes.count + sparePositions; len(nodes.ids) > most {
			t.Errorf("label %s has %d entries for %d nodes, want at most %d", label, len(nodes.ids), nodes.count, most)
		}
	}
}

// BenchmarkReferToUnknownLabel refers to one more label that no node has.
func BenchmarkReferToUnknownLabel(b *testing.B) {
	c := newTestCluster(b)
	for i := range 100_000 {
		c.Apply(klog.Logger{}, []operation{{node: labelledNode(fmt.Sprint("node-", i), map[string]string{"disk": "ssd", "rack": fmt.Sprint(i % 100)})}})
	}
	number := 0
	for b.Loop() {
		number++
		c.ReferToLabels([]string{fmt.Sprint("key-", number)})
	}
}
