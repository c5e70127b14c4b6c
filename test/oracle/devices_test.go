package oracle

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Extended resources. Each is backed by a DeviceClass. Devices are in ResourceSlices of some nodes, or of all
// nodes of a zone; other nodes have the resource gpu from a device plugin, in their status.
const (
	gpu, fpga = "example.com/gpu", "example.com/fpga"
)

func deviceClass(name string) string { return name[len("example.com/"):] }

func driver(name string) string { return deviceClass(name) + ".example.com" }

func sliceName(node, device string) string { return node + "-" + deviceClass(device) }

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

// addDevices creates a ResourceSlice with devices of a node.
func (w *world) addDevices(node, name string) {
	w.addSlice(sliceName(node, name), name, resourceapi.ResourceSliceSpec{NodeName: ptr.To(node)})
}

// addZoneDevices creates a ResourceSlice with devices that all nodes of a zone can use.
func (w *world) addZoneDevices() {
	selector := &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchExpressions: []v1.NodeSelectorRequirement{
		{Key: v1.LabelTopologyZone, Operator: v1.NodeSelectorOpIn, Values: []string{pick(w, zones...)}},
	}}}}
	w.addSlice("zone-fpga", fpga, resourceapi.ResourceSliceSpec{NodeSelector: selector})
}

// addSlice creates a ResourceSlice with one to three devices. It changes nothing if it exists: the slices of a node
// that was deleted remain.
func (w *world) addSlice(name, device string, spec resourceapi.ResourceSliceSpec) {
	spec.Driver, spec.Pool = driver(device), resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: 1}
	for i := range 1 + w.rand.IntN(3) {
		spec.Devices = append(spec.Devices, resourceapi.Device{Name: fmt.Sprintf("device-%d", i)})
	}
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	if _, err := w.client.ResourceV1().ResourceSlices().Create(w.ctx, slice, metav1.CreateOptions{}); !exists(err) {
		w.must(err)
	}
}

// addResourceClaim sometimes lets a pod use a resource claim: a new one, or one that all pods of its namespace
// share. It leaves out pods that also request the extended resource gpu: kube-scheduler 1.37 cannot bind such a pod to
// a node that has gpu from a device plugin ("nil or empty request mappings").
func (w *world) addResourceClaim(pod *v1.Pod) {
	if !w.chance(6) || requestsResource(pod, gpu) {
		return
	}
	name := pod.Name
	if w.chance(25) {
		name = sharedClaim
	} else {
		w.createResourceClaim(pod.Namespace, name)
	}
	pod.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "device", ResourceClaimName: ptr.To(name)}}
	pod.Spec.Containers[0].Resources.Claims = []v1.ResourceClaim{{Name: "device"}}
}

func requestsResource(pod *v1.Pod, name v1.ResourceName) bool {
	requests := func(c v1.Container) bool { return !c.Resources.Requests.Name(name, resource.DecimalSI).IsZero() }
	return slices.ContainsFunc(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers), requests)
}

// sharedClaim is the resource claim in each namespace that pods share.
const sharedClaim = "shared-device"

// createResourceClaim creates a claim for one device, for two, or for the first of two kinds that is available.
func (w *world) createResourceClaim(namespace, name string) {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}}
	if name != sharedClaim {
		// The owner is only for removeUnusedClaims.
		claim.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: name, UID: "1"}}
	}
	request := resourceapi.DeviceRequest{Name: "device"}
	if w.chance(40) {
		request.FirstAvailable = []resourceapi.DeviceSubRequest{
			{Name: "first", DeviceClassName: deviceClass(gpu), Count: 1 + w.rand.Int64N(2), AllocationMode: resourceapi.DeviceAllocationModeExactCount},
			{Name: "second", DeviceClassName: deviceClass(fpga), Count: 1, AllocationMode: resourceapi.DeviceAllocationModeExactCount},
		}
	} else {
		request.Exactly = &resourceapi.ExactDeviceRequest{
			DeviceClassName: deviceClass(pick(w, gpu, fpga)), Count: 1 + w.rand.Int64N(2), AllocationMode: resourceapi.DeviceAllocationModeExactCount,
		}
	}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{request}
	_, err := w.client.ResourceV1().ResourceClaims(namespace).Create(w.ctx, claim, metav1.CreateOptions{})
	w.must(err)
}
