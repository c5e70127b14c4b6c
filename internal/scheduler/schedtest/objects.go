package schedtest

import (
	"fmt"
	"net/http"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TimeoutError returns the error that an API server answers after a timeout.
func TimeoutError() error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusGatewayTimeout, Reason: metav1.StatusReasonTimeout, Message: "the server took too long"}}
}

// PlainNode returns a node with the given CPU, 256 GiB of memory and room for 110 pods.
func PlainNode(name, cpu string) *v1.Node {
	capacity := Resources(cpu, "256Gi")
	capacity[v1.ResourcePods] = Quantity("110")
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{v1.LabelHostname: name}},
		Status:     v1.NodeStatus{Allocatable: capacity, Capacity: capacity},
	}
}

// PlainPod returns a pod in the default namespace that requests the given CPU and 64 MiB of memory.
func PlainPod(name, cpu string) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name), Labels: map[string]string{}}}
	pod.Spec.SchedulerName = v1.DefaultSchedulerName
	pod.Spec.Containers = []v1.Container{{Name: "main", Image: "pause", Resources: v1.ResourceRequirements{Requests: Resources(cpu, "64Mi")}}}
	return pod
}

// Quantity parses a quantity and panics if it is invalid.
func Quantity(text string) resource.Quantity { return resource.MustParse(text) }

// Resources returns a resource list of CPU and memory.
func Resources(cpu, memory string) v1.ResourceList {
	return v1.ResourceList{v1.ResourceCPU: Quantity(cpu), v1.ResourceMemory: Quantity(memory)}
}

// TopologyKeys returns a number of topology keys, or keys of node labels, that no other test uses.
func TopologyKeys(prefix string, number int) []string {
	keys := make([]string, number)
	for i := range keys {
		keys[i] = fmt.Sprintf("example.com/%s-%d", prefix, i)
	}
	return keys
}

// PodWithTopologyKeys returns a pod that requests the given CPU. It has a preferred affinity term for each topology
// key, and each term matches all pods of all namespaces.
func PodWithTopologyKeys(name, cpu string, keys []string) *v1.Pod {
	pod := PlainPod(name, cpu)
	terms := make([]v1.WeightedPodAffinityTerm, len(keys))
	for i, key := range keys {
		terms[i] = v1.WeightedPodAffinityTerm{Weight: 1, PodAffinityTerm: v1.PodAffinityTerm{
			TopologyKey: key, LabelSelector: &metav1.LabelSelector{}, NamespaceSelector: &metav1.LabelSelector{},
		}}
	}
	pod.Spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: terms}}
	return pod
}
