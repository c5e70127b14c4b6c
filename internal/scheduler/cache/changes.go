package cache

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// sameForScheduling returns whether two versions of a node are equal in all fields that plugins read.
func sameForScheduling(before, after *v1.Node) bool {
	return before.Spec.Unschedulable == after.Spec.Unschedulable &&
		maps.EqualFunc(before.Status.Allocatable, after.Status.Allocatable, sameQuantity) &&
		maps.Equal(before.Labels, after.Labels) &&
		slices.EqualFunc(before.Spec.Taints, after.Spec.Taints, sameTaint) &&
		slices.EqualFunc(before.Status.Images, after.Status.Images, sameImage) &&
		slices.Equal(before.Status.DeclaredFeatures, after.Status.DeclaredFeatures)
}

// SameOnNode returns whether two versions of a bound pod have the same effect on their node and on the
// placement of other pods.
func SameOnNode(before, after *v1.Pod) bool {
	return before.UID == after.UID && before.Spec.NodeName == after.Spec.NodeName &&
		(before.DeletionTimestamp == nil) == (after.DeletionTimestamp == nil) &&
		maps.Equal(before.Labels, after.Labels) &&
		sameUsage(before, after)
}

// sameUsage returns whether two versions of a pod certainly use the same resources of their node. It compares
// only the requests that a resize can change, and returns false if the status of one version counts.
func sameUsage(before, after *v1.Pod) bool {
	return slices.EqualFunc(before.Spec.Containers, after.Spec.Containers, sameContainer) &&
		slices.EqualFunc(before.Spec.InitContainers, after.Spec.InitContainers, sameContainer) &&
		(before.Spec.Resources == nil) == (after.Spec.Resources == nil) &&
		(before.Spec.Resources == nil || equality.Semantic.DeepEqual(before.Spec.Resources, after.Spec.Resources)) &&
		!StatusCounts(before) && !StatusCounts(after)
}

func sameContainer(a, b v1.Container) bool {
	return maps.EqualFunc(a.Resources.Requests, b.Resources.Requests, sameQuantity)
}

// StatusCounts returns whether the requests of a pod may depend on its status: it reports resources, which may
// differ from those in the spec, or it says that a resize is infeasible, so that the spec does not count.
func StatusCounts(pod *v1.Pod) bool {
	for _, statuses := range [][]v1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses} {
		for i := range statuses {
			if statuses[i].Resources != nil || len(statuses[i].AllocatedResources) > 0 {
				return true
			}
		}
	}
	return pod.Status.Resources != nil || len(pod.Status.AllocatedResources) > 0 ||
		len(pod.Status.NodeAllocatableResourceClaimStatuses) > 0 || resourcehelper.IsPodResizeInfeasible(pod)
}

func sameQuantity(a, b resource.Quantity) bool { return a.Cmp(b) == 0 }

func sameTaint(a, b v1.Taint) bool {
	return a.Key == b.Key && a.Value == b.Value && a.Effect == b.Effect
}

func sameImage(a, b v1.ContainerImage) bool {
	return a.SizeBytes == b.SizeBytes && slices.Equal(a.Names, b.Names)
}
