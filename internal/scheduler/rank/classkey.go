package rank

import (
	"encoding/binary"
	"maps"
	"slices"
	"sort"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	fwk "k8s.io/kube-scheduler/framework"
	schedutil "k8s.io/kubernetes/pkg/scheduler/util"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/intern"
)

// ClassKey returns the key of a pod's class. Pods with equal keys are treated alike by every plugin. The
// result is valid until the next call, because the buffer is reused.
func ClassKey(c *cache.Cluster, p *Profile, pod fwk.PodInfo) ([]byte, error) {
	object := pod.GetPod()
	spec := &object.Spec
	key := intern.AppendString(c.Names.Key[:0], p.Framework.ProfileName())
	key = intern.AppendString(key, object.Namespace)
	key = binary.AppendVarint(key, int64(c.Names.Version))
	key = appendRequests(key, pod)
	key = intern.AppendLabels(key, spec.NodeSelector)
	for i := range spec.Tolerations {
		key = intern.AppendMessage(key, &spec.Tolerations[i])
	}
	key = append(key, 0)
	for _, port := range schedutil.GetHostPorts(object) {
		key = intern.AppendMessage(key, &port)
	}
	key = append(key, 0)
	key = appendPodImages(key, spec)
	if affinity := spec.Affinity; affinity != nil {
		key = intern.AppendMessage(key, affinity)
	}
	key = append(key, 0)
	for i := range spec.TopologySpreadConstraints {
		key = intern.AppendMessage(key, &spec.TopologySpreadConstraints[i])
	}
	key = append(key, 0)
	if selector := p.defaultSelector(object); selector != nil {
		key = intern.AppendString(key, selector.String())
	}
	key = append(key, 0)
	key, err := p.appendFeatures(key, spec)
	if err != nil {
		return nil, err
	}
	key = appendVisibleLabels(key, c, object)
	c.Names.Key = key
	return key, nil
}

// appendRequests appends the requests in a pod's spec. Equal specs have equal effective requests. For pods
// whose status also affects them, it appends the effective requests, too.
func appendRequests(key []byte, pod fwk.PodInfo) []byte {
	object := pod.GetPod()
	spec := &object.Spec
	key = binary.AppendUvarint(key, uint64(len(spec.InitContainers)))
	for i := range spec.InitContainers {
		policy := spec.InitContainers[i].RestartPolicy
		key = intern.AppendBool(key, policy != nil && *policy == v1.ContainerRestartPolicyAlways)
		key = appendList(key, spec.InitContainers[i].Resources.Requests)
	}
	key = binary.AppendUvarint(key, uint64(len(spec.Containers)))
	for i := range spec.Containers {
		key = appendList(key, spec.Containers[i].Resources.Requests)
	}
	key = appendList(key, spec.Overhead)
	key = intern.AppendBool(key, spec.Resources != nil)
	if spec.Resources != nil {
		key = appendList(key, spec.Resources.Requests)
	}
	if cache.StatusCounts(object) {
		key = appendStatus(key, object)
	}
	return append(key, 0)
}

// appendStatus appends what the requests of a pod may depend on besides its spec: its status, and the names of
// containers, to which the status refers.
func appendStatus(key []byte, pod *v1.Pod) []byte {
	for i := range pod.Spec.InitContainers {
		key = intern.AppendString(key, pod.Spec.InitContainers[i].Name)
	}
	for i := range pod.Spec.Containers {
		key = intern.AppendString(key, pod.Spec.Containers[i].Name)
	}
	return intern.AppendMessage(key, &pod.Status)
}

// appendList appends a list of resources. CPU and memory are first and need no sorting, because nearly
// every pod requests them.
func appendList(key []byte, list v1.ResourceList) []byte {
	remaining := len(list)
	for _, name := range [2]v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		amount, requested := list[name]
		key = intern.AppendBool(key, requested)
		if requested {
			key = appendAmount(key, name, amount)
			remaining--
		}
	}
	if remaining > 0 {
		for _, name := range slices.Sorted(maps.Keys(list)) {
			key = intern.AppendString(key, string(name))
			key = appendAmount(key, name, list[name])
		}
	}
	return append(key, 0)
}

// appendAmount appends an amount exactly. Rounded amounts would not suffice, because plugins round the sum of
// all containers.
func appendAmount(key []byte, name v1.ResourceName, amount resource.Quantity) []byte {
	if name == v1.ResourceCPU {
		return binary.AppendVarint(key, amount.ScaledValue(resource.Nano))
	}
	whole, exact := amount.AsInt64()
	key = intern.AppendBool(key, exact)
	if exact {
		return binary.AppendVarint(key, whole)
	}
	return intern.AppendString(key, amount.String())
}

func appendPodImages(key []byte, spec *v1.PodSpec) []byte {
	for i := range spec.InitContainers {
		key = intern.AppendString(key, spec.InitContainers[i].Image)
	}
	for i := range spec.Containers {
		key = intern.AppendString(key, spec.Containers[i].Image)
	}
	for i := range spec.Volumes {
		if image := spec.Volumes[i].Image; image != nil {
			key = intern.AppendString(key, image.Reference)
		}
	}
	return append(key, 0)
}

// appendVisibleLabels appends those labels of a pod to which a selector refers: a selector of a running
// pod, or one of the pod's own.
func appendVisibleLabels(key []byte, c *cache.Cluster, pod *v1.Pod) []byte {
	own := cache.OwnSelectorKeys(pod)
	keys := make([]string, 0, len(pod.Labels))
	for label := range pod.Labels {
		if c.Names.AllVisible || c.Names.Visible.Has(label) || own.Has(label) {
			keys = append(keys, label)
		}
	}
	sort.Strings(keys)
	for _, label := range keys {
		key = intern.AppendString(key, label)
		key = intern.AppendString(key, pod.Labels[label])
	}
	return append(key, 0)
}
