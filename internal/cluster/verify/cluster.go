// Package verify checks through the API whether every bound pod is allowed on its node. It shares
// no code with the schedulers whose decisions it checks.
//
// [Read] reads a [Cluster], and [Cluster.Check] applies the rules and returns a [Report]:
// resources, host ports, taints and node affinity (node_rules.go), topology spread (spread.go)
// and pod anti-affinity (anti_affinity.go).
//
// The rules check the current state, not the state in which a pod was bound. They report no violation
// that pods created later can explain. They can still report a false violation if another pod was
// deleted, or a node changed, after a pod was bound.
package verify

import (
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// Cluster is the part of a cluster's state that the rules need.
type Cluster struct {
	nodes      []node
	byName     map[string]int       // indexes in nodes, by node name
	classes    map[string]*podClass // by the JSON form of everything that the rules read
	classList  []*podClass
	namespaces map[string]labels.Set // labels by namespace
	report     Report
}

type node struct {
	object *v1.Node
	pods   []boundPod
}

// podClass is a set of pods that the rules cannot distinguish.
type podClass struct {
	namespace string
	labels    labels.Set
	spec      v1.PodSpec
	requests  v1.ResourceList
	required  nodeaffinity.RequiredNodeAffinity
	pods      []boundPod
}

// boundPod is a pod that is bound to a node.
type boundPod struct {
	class       *podClass
	name        string
	node        int
	terminating bool
}

// New returns an empty cluster.
func New() *Cluster {
	return &Cluster{
		byName: map[string]int{}, classes: map[string]*podClass{}, namespaces: map[string]labels.Set{},
		report: Report{Violations: []Violation{}},
	}
}

// AddNamespace adds a namespace.
func (c *Cluster) AddNamespace(object *v1.Namespace) { c.namespaces[object.Name] = object.Labels }

// AddNode adds a node. All nodes must be added before the pods.
func (c *Cluster) AddNode(object *v1.Node) {
	kept := &v1.Node{}
	kept.Name, kept.Labels = object.Name, object.Labels
	kept.Spec.Taints = object.Spec.Taints
	kept.Status.Allocatable = object.Status.Allocatable
	c.byName[kept.Name] = len(c.nodes)
	c.nodes = append(c.nodes, node{object: kept})
	c.report.Nodes++
}

// AddPod adds a pod. Pods that are not bound, have terminated, or are bound to a node that does
// not exist are only counted.
func (c *Cluster) AddPod(object *v1.Pod) error {
	c.report.Pods++
	if object.Status.Phase == v1.PodSucceeded || object.Status.Phase == v1.PodFailed {
		c.report.Terminated++
		return nil
	}
	if object.Spec.NodeName == "" {
		c.report.Pending++
		return nil
	}
	number, found := c.byName[object.Spec.NodeName]
	if !found {
		c.report.OnMissingNodes++
		return nil
	}
	class, err := c.classOf(object)
	if err != nil {
		return err
	}
	pod := boundPod{class: class, name: object.Name, node: number, terminating: object.DeletionTimestamp != nil}
	class.pods = append(class.pods, pod)
	c.nodes[number].pods = append(c.nodes[number].pods, pod)
	c.report.Bound++
	return nil
}

// classOf returns the class of a pod. It creates the class if no earlier pod has it.
func (c *Cluster) classOf(object *v1.Pod) (*podClass, error) {
	class := &podClass{namespace: object.Namespace, labels: object.Labels, spec: keptSpec(&object.Spec)}
	class.requests = resourcehelper.PodRequests(object, resourcehelper.PodResourcesOptions{UseStatusResources: true})
	key, err := json.Marshal([]any{class.namespace, class.labels, class.spec, class.requests})
	if err != nil {
		return nil, fmt.Errorf("reading pod %s/%s: %w", object.Namespace, object.Name, err)
	}
	if existing := c.classes[string(key)]; existing != nil {
		return existing, nil
	}
	class.required = nodeaffinity.GetRequiredNodeAffinity(&v1.Pod{Spec: class.spec})
	c.classes[string(key)] = class
	c.classList = append(c.classList, class)
	return class, nil
}

// keptSpec returns the part of a pod's spec that the rules need. It replaces the containers by one
// container for each host port.
func keptSpec(spec *v1.PodSpec) v1.PodSpec {
	kept := v1.PodSpec{
		NodeSelector: spec.NodeSelector, Tolerations: spec.Tolerations, Affinity: spec.Affinity,
		TopologySpreadConstraints: spec.TopologySpreadConstraints,
	}
	for i := range spec.InitContainers {
		// Init containers that are no sidecars terminate before the containers start, so their host
		// ports are free again.
		if policy := spec.InitContainers[i].RestartPolicy; policy != nil && *policy == v1.ContainerRestartPolicyAlways {
			kept.Containers = appendHostPorts(kept.Containers, spec.InitContainers[i].Ports)
		}
	}
	for i := range spec.Containers {
		kept.Containers = appendHostPorts(kept.Containers, spec.Containers[i].Ports)
	}
	return kept
}

// appendHostPorts appends a container for each host port.
func appendHostPorts(kept []v1.Container, ports []v1.ContainerPort) []v1.Container {
	for _, port := range ports {
		if port.HostPort > 0 {
			kept = append(kept, v1.Container{Ports: []v1.ContainerPort{port}})
		}
	}
	return kept
}
