package attach_test

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/pushinformer"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest/generate"
)

// deviceDrivers are drivers of devices. There is a DeviceClass of the name of each.
var deviceDrivers = []string{"fast", "slow"}

// push sets or deletes an object of the resource API in the informers of each scheduler and of the reference.
func (w *world) push(object runtime.Object, remove bool) {
	for _, factory := range w.informers {
		if remove {
			w.must(pushinformer.Delete(factory, object))
		} else {
			w.must(pushinformer.Push(factory, object))
		}
	}
}

// addDeviceClasses creates the DeviceClasses of deviceDrivers.
func (w *world) addDeviceClasses() {
	for _, driver := range deviceDrivers {
		class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: driver}}
		class.Spec.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", driver+".example.com")}}}
		w.push(class, false)
	}
}

// addDevices sometimes gives a node one to three devices.
func (w *world) addDevices(node string) {
	for _, driver := range deviceDrivers {
		if !w.Chance(50) {
			continue
		}
		w.push(deviceSlice(node, driver, 1+w.Rand.IntN(3)), false)
	}
}

// deviceSlice returns a ResourceSlice with devices of a node.
func deviceSlice(node, driver string, number int) *resourcev1.ResourceSlice {
	slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node + "-" + driver}, Spec: resourcev1.ResourceSliceSpec{
		Driver: driver + ".example.com", NodeName: ptr.To(node), Pool: resourcev1.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
	}}
	for i := range number {
		slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{Name: fmt.Sprint("device-", i)})
	}
	return slice
}

// claimDevices gives a pod a claim for one or two devices, or for the first available of two kinds.
func (w *world) claimDevices(pod *v1.Pod, alternatives bool) {
	request := resourcev1.DeviceRequest{Name: "device"}
	if alternatives {
		for _, driver := range deviceDrivers {
			request.FirstAvailable = append(request.FirstAvailable, resourcev1.DeviceSubRequest{
				Name: driver, DeviceClassName: driver, Count: 1, AllocationMode: resourcev1.DeviceAllocationModeExactCount,
			})
		}
	} else {
		request.Exactly = &resourcev1.ExactDeviceRequest{
			DeviceClassName: generate.Pick(w.Rand, deviceDrivers), Count: 1 + w.Rand.Int64N(2), AllocationMode: resourcev1.DeviceAllocationModeExactCount,
		}
	}
	w.putClaim(pod, request)
}

// putClaim creates a claim for a pod.
func (w *world) putClaim(pod *v1.Pod, request resourcev1.DeviceRequest) {
	claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: types.UID("claim-" + pod.Name), ResourceVersion: "1"}}
	claim.Spec.Devices.Requests = []resourcev1.DeviceRequest{request}
	pod.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "device", ResourceClaimName: ptr.To(claim.Name)}}
	w.record("create claim %s", claim.Name)
	w.push(claim, false)
}

// claimOf returns the claim of a pod; nil if it has none.
func (w *world) claimOf(pod *v1.Pod) *resourcev1.ResourceClaim {
	if len(pod.Spec.ResourceClaims) == 0 {
		return nil
	}
	stored, exists, err := w.informers[0].Resource().V1().ResourceClaims().Informer().GetIndexer().GetByKey(pod.Namespace + "/" + pod.Name)
	w.must(err)
	if !exists {
		return nil
	}
	return stored.(*resourcev1.ResourceClaim)
}

// allocate stores the allocation of the claim of a pod, with which Reserve and PreBind would continue after the last decision.
func (w *world) allocate(pod *v1.Pod, node string) {
	claim := w.claimOf(pod)
	if claim == nil || claim.Status.Allocation != nil {
		return
	}
	fw := w.sched.Profiles[v1.DefaultSchedulerName]
	if status := fw.RunReservePluginsReserve(w.ctx, w.lastState, pod, node); !status.IsSuccess() {
		w.fail(pod, "Reserve on %s: %v", node, status)
		return
	}
	allocated := claim.DeepCopy()
	allocated.Status.Allocation = fw.SharedDRAManager().ResourceClaims().GetPendingAllocation(claim.UID)
	fw.RunReservePluginsUnreserve(w.ctx, w.lastState, pod, node)
	if allocated.Status.Allocation == nil {
		w.fail(pod, "Reserve on %s has not allocated the claim", node)
		return
	}
	allocated.ResourceVersion = "2"
	allocated.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: pod.Name, UID: pod.UID}}
	w.push(allocated, false)
}

// dropClaim deletes the claim of a pod that is gone.
func (w *world) dropClaim(pod *v1.Pod) {
	if claim := w.claimOf(pod); claim != nil {
		w.push(claim, true)
	}
}
