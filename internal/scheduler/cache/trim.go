package cache

import (
	"sync"
	"unique"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/intern"
)

// Trimmer removes the fields that scheduling does not read from nodes, CSINodes and pods, before an informer
// stores them. Objects share equal parts, so they must not be changed afterwards.
type Trimmer struct {
	mu    sync.Mutex
	specs shared[v1.PodSpec]
	metas shared[metav1.ObjectMeta]
	nodes shared[v1.NodeStatus]
	key   []byte
}

// NewTrimmer returns a trimmer.
func NewTrimmer() *Trimmer {
	return &Trimmer{specs: shared[v1.PodSpec]{}, metas: shared[metav1.ObjectMeta]{}, nodes: shared[v1.NodeStatus]{}}
}

// shared are recent values that objects share, by the encoding of the value.
type shared[T any] map[string]T

// maxShared is the number of values at which the map is cleared. Objects keep the values that they have.
const maxShared = 4096

// intern returns the stored value with the same key. If there is none, it stores the given value and returns
// it.
func (s shared[T]) intern(key []byte, value T) T {
	if known, ok := s[string(key)]; ok {
		return known
	}
	if len(s) >= maxShared {
		clear(s)
	}
	s[string(key)] = value
	return value
}

// Transform trims a node, a CSINode or a pod. It is a [toolscache.TransformFunc].
func (t *Trimmer) Transform(object any) (any, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch object := object.(type) {
	case *v1.Pod:
		t.pod(object)
	case *v1.Node:
		t.node(object)
	case *storagev1.CSINode:
		trimCSINode(object)
	case toolscache.DeletedFinalStateUnknown:
		// Its object comes from the store, so it is already trimmed.
	}
	return object, nil
}

// pod trims a pod.
func (t *Trimmer) pod(pod *v1.Pod) {
	trimMeta(&pod.ObjectMeta)
	spec := &pod.Spec
	spec.EphemeralContainers = trimEphemeral(spec.EphemeralContainers)
	trimContainers(spec.InitContainers)
	trimContainers(spec.Containers)
	status := &pod.Status
	status.HostIPs, status.PodIPs, status.HostIP, status.PodIP, status.Message = nil, nil, "", "", ""
	status.ContainerStatuses = trimStatuses(status.ContainerStatuses)
	status.InitContainerStatuses = trimStatuses(status.InitContainerStatuses)
	status.EphemeralContainerStatuses = nil

	node := spec.NodeName
	spec.NodeName = ""
	t.key = intern.AppendMessage(t.key[:0], spec)
	pod.Spec = t.specs.intern(t.key, *spec)
	pod.Spec.NodeName = node
	common := metav1.ObjectMeta{Labels: pod.Labels, OwnerReferences: pod.OwnerReferences}
	t.key = intern.AppendMessage(t.key[:0], &common)
	common = t.metas.intern(t.key, common)
	pod.Labels, pod.OwnerReferences = common.Labels, common.OwnerReferences
}

// trimContainers drops the fields of containers that only kubelets read.
func trimContainers(containers []v1.Container) {
	for i := range containers {
		c := &containers[i]
		c.Command, c.Args, c.WorkingDir, c.EnvFrom, c.Env = nil, nil, "", nil, nil
		c.LivenessProbe, c.ReadinessProbe, c.StartupProbe, c.Lifecycle = nil, nil, nil, nil
		c.TerminationMessagePath, c.TerminationMessagePolicy, c.ImagePullPolicy = "", "", ""
		c.VolumeMounts = trimMounts(c.VolumeMounts)
	}
}

// trimMounts keeps only the mounts with options. The plugin NodeDeclaredFeatures reads these: nodes declare
// whether they support them.
func trimMounts(mounts []v1.VolumeMount) []v1.VolumeMount {
	var kept []v1.VolumeMount
	for _, mount := range mounts {
		if len(mount.BindMountOptions) > 0 {
			kept = append(kept, mount)
		}
	}
	return kept
}

// trimEphemeral keeps only the ephemeral containers that have mounts with options, and only these mounts.
func trimEphemeral(containers []v1.EphemeralContainer) []v1.EphemeralContainer {
	var kept []v1.EphemeralContainer
	for i := range containers {
		if mounts := trimMounts(containers[i].VolumeMounts); len(mounts) > 0 {
			common := v1.EphemeralContainerCommon{Name: containers[i].Name, VolumeMounts: mounts}
			kept = append(kept, v1.EphemeralContainer{EphemeralContainerCommon: common})
		}
	}
	return kept
}

// trimStatuses keeps only the container statuses that report resources, and only the resources in them.
func trimStatuses(statuses []v1.ContainerStatus) []v1.ContainerStatus {
	var kept []v1.ContainerStatus
	for _, status := range statuses {
		if status.Resources != nil || len(status.AllocatedResources) > 0 {
			kept = append(kept, v1.ContainerStatus{
				Name: status.Name, Resources: status.Resources, AllocatedResources: status.AllocatedResources,
			})
		}
	}
	return kept
}

// node trims a node.
func (t *Trimmer) node(node *v1.Node) {
	trimMeta(&node.ObjectMeta)
	// Keys and values of labels repeat on many nodes, but the labels of a node as a whole do not.
	labels := make(map[string]string, len(node.Labels))
	for key, value := range node.Labels {
		labels[unique.Make(key).Value()] = unique.Make(value).Value()
	}
	node.Labels = labels
	node.Spec.PodCIDR, node.Spec.PodCIDRs = "", nil
	kept := v1.NodeStatus{
		Capacity: node.Status.Capacity, Allocatable: node.Status.Allocatable, Images: node.Status.Images,
		Phase: node.Status.Phase, DeclaredFeatures: node.Status.DeclaredFeatures, Features: node.Status.Features,
		RuntimeHandlers: node.Status.RuntimeHandlers,
	}
	for _, condition := range node.Status.Conditions {
		kept.Conditions = append(kept.Conditions, v1.NodeCondition{Type: condition.Type, Status: condition.Status})
	}
	t.key = intern.AppendMessage(t.key[:0], &kept)
	node.Status = t.nodes.intern(t.key, kept)
}

// trimCSINode trims the CSINode of a node. There is one for each node, and most list no driver. Its annotations
// name the plugins that are migrated, which are the same on most nodes.
func trimCSINode(node *storagev1.CSINode) {
	trimMeta(&node.ObjectMeta)
	node.OwnerReferences = nil
	for key, value := range node.Annotations {
		node.Annotations[key] = unique.Make(value).Value()
	}
}

func trimMeta(meta *metav1.ObjectMeta) {
	meta.ManagedFields = nil
	delete(meta.Annotations, v1.LastAppliedConfigAnnotation)
}
