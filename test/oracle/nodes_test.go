package oracle

import (
	"fmt"
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// hugePages is a resource of some nodes, and restartFeature is a feature that some nodes declare.
const (
	hugePages      = v1.ResourceHugePagesPrefix + "2Mi"
	restartFeature = "RestartAllContainersOnContainerExits"
)

var (
	zones      = []string{"a", "b", "c"}
	imageBytes = map[string]int64{"docker.io/library/nginx:latest": 200 << 20, "docker.io/library/redis:7": 40 << 20, "docker.io/library/huge:1": 900 << 20}
)

// addNode creates a node, often with devices and a limit of volumes.
func (w *world) addNode() {
	name := w.addBareNode()
	for _, device := range []string{gpu, fpga} {
		if w.chance(30) {
			w.addDevices(name, device)
		}
	}
	if w.chance(40) {
		w.limitVolumes(name)
	}
}

// addBareNode creates a node by one write, and returns its name. Sometimes a node with this name existed before,
// and the pods on it still do.
func (w *world) addBareNode() string {
	w.lastNumber++
	name := fmt.Sprintf("node-%d", w.lastNumber)
	if last := len(w.removedNames) - 1; last >= 0 && w.chance(50) {
		name, w.removedNames = w.removedNames[last], w.removedNames[:last]
	}
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	w.randomizeNode(node)
	_, err := w.client.CoreV1().Nodes().Create(w.ctx, node, metav1.CreateOptions{})
	w.must(err)
	w.names = append(w.names, name)
	return name
}

// changeNode gives a node other labels, taints, resources and images.
func (w *world) changeNode() {
	node, err := w.client.CoreV1().Nodes().Get(w.ctx, pick(w, w.names...), metav1.GetOptions{})
	w.must(err)
	w.randomizeNode(node)
	status := node.Status
	node, err = w.client.CoreV1().Nodes().Update(w.ctx, node, metav1.UpdateOptions{})
	w.must(err)
	node.Status = status
	_, err = w.client.CoreV1().Nodes().UpdateStatus(w.ctx, node, metav1.UpdateOptions{})
	w.must(err)
}

func (w *world) randomizeNode(node *v1.Node) {
	node.Labels = map[string]string{"size": strconv.Itoa(w.rand.IntN(4))}
	if !w.chance(5) {
		node.Labels[v1.LabelHostname] = node.Name
	}
	if !w.chance(15) {
		node.Labels[v1.LabelTopologyZone] = pick(w, zones...)
	}
	if w.chance(50) {
		node.Labels["disk"] = pick(w, "ssd", "hdd")
	}
	if w.chance(40) {
		node.Labels["rack"] = strconv.Itoa(w.rand.IntN(5))
	}
	node.Spec.Unschedulable = w.chance(4)
	node.Spec.Taints = nil
	for _, key := range []string{"gpu", "spot", "old"} {
		if w.chance(12) {
			node.Spec.Taints = append(node.Spec.Taints, v1.Taint{Key: key, Value: pick(w, "yes", "no"),
				Effect: pick(w, v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule, v1.TaintEffectPreferNoSchedule, v1.TaintEffectNoExecute)})
		}
	}
	node.Status.Allocatable = v1.ResourceList{
		v1.ResourceCPU: quantity(pick(w, "3500m", "4", "6", "8", "16")), v1.ResourceMemory: quantity(pick(w, "4Gi", "8Gi", "12Gi", "16Gi", "32Gi")),
		v1.ResourcePods: quantity(pick(w, "8", "20", "110")), v1.ResourceEphemeralStorage: quantity(pick(w, "10Gi", "20Gi")),
	}
	if w.crowded {
		node.Status.Allocatable[v1.ResourceCPU] = quantity(pick(w, "1", "1500m", "2"))
		node.Status.Allocatable[v1.ResourcePods] = quantity(pick(w, "4", "6", "20"))
	}
	if w.chance(20) {
		node.Status.Allocatable[gpu] = quantity("2")
	}
	if w.chance(30) {
		node.Status.Allocatable[hugePages] = quantity("64Mi")
	}
	node.Status.DeclaredFeatures = nil
	if w.chance(60) {
		node.Status.DeclaredFeatures = []string{restartFeature}
	}
	node.Status.Capacity = node.Status.Allocatable.DeepCopy()
	node.Status.Images = nil
	for _, image := range sortedKeys(imageBytes) {
		if w.chance(30) {
			node.Status.Images = append(node.Status.Images, v1.ContainerImage{Names: []string{image}, SizeBytes: imageBytes[image]})
		}
	}
}

func quantity(text string) resource.Quantity { return resource.MustParse(text) }
