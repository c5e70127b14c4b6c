package generate

import (
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// Node returns a random node with a new name.
func (c *Cluster) Node() *v1.Node {
	c.LastNumber++
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", c.LastNumber), Labels: map[string]string{}}}
	c.RandomizeNode(node)
	return node
}

// ChangedNode returns a copy of a node with other labels, taints and resources, or only with another heartbeat.
func (c *Cluster) ChangedNode(node *v1.Node) *v1.Node {
	changed := node.DeepCopy()
	if c.Chance(50) {
		changed.Labels = map[string]string{}
		c.RandomizeNode(changed)
	} else {
		// A heartbeat changes nothing that the scheduler uses.
		changed.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, LastHeartbeatTime: metav1.Now()}}
	}
	return changed
}

// RandomNode returns one of the nodes; nil if there is none.
func (c *Cluster) RandomNode() *v1.Node {
	if len(c.Nodes) == 0 {
		return nil
	}
	return c.Nodes[Pick(c.Rand, slices.Sorted(maps.Keys(c.Nodes)))]
}

// RandomizeNode gives a node random labels, taints, resources and images.
func (c *Cluster) RandomizeNode(node *v1.Node) {
	if !c.Chance(5) {
		node.Labels[v1.LabelHostname] = node.Name
	}
	if !c.Chance(15) {
		node.Labels[v1.LabelTopologyZone] = Pick(c.Rand, zones)
	}
	if c.Chance(50) {
		node.Labels["disk"] = Pick(c.Rand, []string{"ssd", "hdd"})
	}
	if c.Chance(40) {
		node.Labels["rack"] = fmt.Sprint(c.Rand.IntN(5))
	}
	if c.Chance(60) {
		node.Labels["cores"] = Pick(c.Rand, []string{"2", "8", "16", "many"})
	}
	if c.Chance(5) {
		node.Labels["row"] = fmt.Sprint(c.Rand.IntN(2))
	}
	if c.Chance(10) {
		for range 1 + c.Rand.IntN(80) {
			node.Labels[rareLabel(c.Rand.IntN(80))] = fmt.Sprint(c.Rand.IntN(2))
		}
	}
	node.Spec.Unschedulable = c.Chance(4)
	node.Spec.Taints = nil
	for _, effect := range []v1.TaintEffect{v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule, v1.TaintEffectPreferNoSchedule} {
		if c.Chance(15) {
			node.Spec.Taints = append(node.Spec.Taints, v1.Taint{Key: Pick(c.Rand, []string{"gpu", "spot", "old"}), Value: "yes", Effect: effect})
		}
	}
	node.Status.Allocatable = schedtest.Resources(Pick(c.Rand, []string{"4", "8", "3500m"}), Pick(c.Rand, []string{"8Gi", "16Gi"}))
	node.Status.Allocatable[v1.ResourcePods] = schedtest.Quantity(Pick(c.Rand, []string{"8", "20", "110"}))
	if c.Chance(70) {
		node.Status.Allocatable[v1.ResourceEphemeralStorage] = schedtest.Quantity(Pick(c.Rand, []string{"1Gi", "10Gi"}))
	}
	if c.Chance(30) {
		node.Status.Allocatable[v1.ResourceHugePagesPrefix+"2Mi"] = schedtest.Quantity("64Mi")
	}
	node.Status.DeclaredFeatures = nil
	for _, feature := range []string{UserNamespacesFeature, RestartFeature} {
		if c.Chance(60) {
			node.Status.DeclaredFeatures = append(node.Status.DeclaredFeatures, feature)
		}
	}
	if c.Chance(20) {
		node.Status.Allocatable["example.com/gpu"] = schedtest.Quantity("2")
	}
	node.Status.Images = nil
	for _, image := range []string{"nginx:latest", "redis:7", "huge:1"} {
		if c.Chance(30) {
			names := []string{image}
			if c.Chance(10) {
				// Upstream counts a name that a node lists twice once.
				names = append(names, image)
			}
			node.Status.Images = append(node.Status.Images, v1.ContainerImage{Names: names, SizeBytes: imageBytes[image]})
		}
	}
}

var imageBytes = map[string]int64{"nginx:latest": 200 << 20, "redis:7": 40 << 20, "huge:1": 900 << 20}
