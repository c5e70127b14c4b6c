package oracle

import (
	"fmt"
	"strconv"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Extended resources. Each is backed by a DeviceClass. Devices are in ResourceSlices of some nodes; other
// nodes have the resource gpu from a device plugin, in their status.
const (
	gpu, fpga = "example.com/gpu", "example.com/fpga"
)

var (
	zones      = []string{"a", "b", "c"}
	imageBytes = map[string]int64{"docker.io/library/nginx:latest": 200 << 20, "docker.io/library/redis:7": 40 << 20, "docker.io/library/huge:1": 900 << 20}
)

func (w *world) addNode() {
	w.lastNumber++
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", w.lastNumber)}}
	w.randomizeNode(node)
	created, err := w.client.CoreV1().Nodes().Create(w.ctx, node, metav1.CreateOptions{})
	w.must(err)
	w.names = append(w.names, node.Name)
	for _, device := range []string{gpu, fpga} {
		if w.chance(30) {
			w.addDevices(created, device)
		}
	}
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
				Effect: pick(w, v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule, v1.TaintEffectPreferNoSchedule)})
		}
	}
	node.Status.Allocatable = v1.ResourceList{
		v1.ResourceCPU: quantity(pick(w, "3500m", "4", "6", "8", "16")), v1.ResourceMemory: quantity(pick(w, "4Gi", "8Gi", "12Gi", "16Gi", "32Gi")),
		v1.ResourcePods: quantity(pick(w, "8", "20", "110")), v1.ResourceEphemeralStorage: quantity(pick(w, "10Gi", "20Gi")),
	}
	if w.crowded {
		node.Status.Allocatable[v1.ResourceCPU] = quantity(pick(w, "1", "1500m", "2", "3"))
		node.Status.Allocatable[v1.ResourcePods] = quantity(pick(w, "4", "6", "20"))
	}
	if w.chance(20) {
		node.Status.Allocatable[gpu] = quantity("2")
	}
	node.Status.Capacity = node.Status.Allocatable.DeepCopy()
	node.Status.Images = nil
	for _, image := range sortedKeys(imageBytes) {
		if w.chance(30) {
			node.Status.Images = append(node.Status.Images, v1.ContainerImage{Names: []string{image}, SizeBytes: imageBytes[image]})
		}
	}
}

// addDevices creates a ResourceSlice with devices of a node, which a DeviceClass offers as an extended
// resource.
func (w *world) addDevices(node *v1.Node, name string) {
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node.Name + "-" + deviceClass(name)}}
	slice.Spec = resourceapi.ResourceSliceSpec{
		Driver: driver(name), NodeName: ptr.To(node.Name),
		Pool: resourceapi.ResourcePool{Name: node.Name, Generation: 1, ResourceSliceCount: 1},
	}
	for i := range 1 + w.rand.IntN(3) {
		slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{Name: fmt.Sprintf("device-%d", i)})
	}
	_, err := w.client.ResourceV1().ResourceSlices().Create(w.ctx, slice, metav1.CreateOptions{})
	w.must(err)
}

// addDeviceClasses creates a DeviceClass for each extended resource.
func (w *world) addDeviceClasses() {
	for _, name := range []string{gpu, fpga} {
		class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: deviceClass(name)}}
		class.Spec.ExtendedResourceName = ptr.To(name)
		class.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: fmt.Sprintf("device.driver == %q", driver(name)),
		}}}
		_, err := w.client.ResourceV1().DeviceClasses().Create(w.ctx, class, metav1.CreateOptions{})
		w.must(err)
	}
}

func deviceClass(name string) string { return name[len("example.com/"):] }

func driver(name string) string { return deviceClass(name) + ".example.com" }

func quantity(text string) resource.Quantity { return resource.MustParse(text) }
