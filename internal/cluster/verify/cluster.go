// Package verify audits a cluster from its API alone: whether every pod that has a
// node may be there. It shares nothing with the schedulers that put them there.
//
// What is read is what is there now, not what was there when a pod was bound. A rule
// says that it is broken only where that follows from what is there, as long as no
// pod was deleted and no node changed since.
package verify

import (
	"context"
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// Cluster is what the audit needs to know, as small as it can be.
type Cluster struct {
	nodes      []node
	byName     map[string]int
	classes    map[string]*class
	order      []*class
	namespaces map[string]labels.Set
	report     Report
}

type node struct {
	object *v1.Node
	pods   []placed
}

// class is pods that differ in nothing that a rule looks at.
type class struct {
	namespace string
	labels    labels.Set
	spec      v1.PodSpec
	requests  v1.ResourceList
	required  nodeaffinity.RequiredNodeAffinity
	pods      []placed
}

// placed is a pod on a node.
type placed struct {
	class       *class
	name        string
	node        int
	terminating bool
}

// New returns a cluster without anything in it.
func New() *Cluster {
	return &Cluster{
		byName: map[string]int{}, classes: map[string]*class{}, namespaces: map[string]labels.Set{},
		report: Report{Violations: []Violation{}},
	}
}

// Objects are read in pages of this size; a list in pages is of one moment all the
// same.
const page = 5000

// Read reads a cluster, and says how far it is: of nodes and of pods.
func Read(ctx context.Context, client kubernetes.Interface, nodes, pods func(done int)) (*Cluster, error) {
	c := New()
	namespaces, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading namespaces: %w", err)
	}
	for i := range namespaces.Items {
		c.AddNamespace(&namespaces.Items[i])
	}
	err = inPages(func(options metav1.ListOptions) (metav1.ListInterface, error) {
		list, err := client.CoreV1().Nodes().List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("reading nodes: %w", err)
		}
		for i := range list.Items {
			c.AddNode(&list.Items[i])
		}
		nodes(len(c.nodes))
		return list, nil
	})
	if err != nil {
		return nil, err
	}
	return c, inPages(func(options metav1.ListOptions) (metav1.ListInterface, error) {
		list, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("reading pods: %w", err)
		}
		for i := range list.Items {
			if err := c.AddPod(&list.Items[i]); err != nil {
				return nil, err
			}
		}
		pods(c.report.Pods)
		return list, nil
	})
}

func inPages(read func(metav1.ListOptions) (metav1.ListInterface, error)) error {
	options := metav1.ListOptions{Limit: page}
	for {
		list, err := read(options)
		if err != nil {
			return err
		}
		if options.Continue = list.GetContinue(); options.Continue == "" {
			return nil
		}
	}
}

// AddNamespace adds a namespace.
func (c *Cluster) AddNamespace(object *v1.Namespace) { c.namespaces[object.Name] = object.Labels }

// AddNode adds a node; all come before the pods.
func (c *Cluster) AddNode(object *v1.Node) {
	kept := &v1.Node{}
	kept.Name, kept.Labels = object.Name, object.Labels
	kept.Spec.Taints = object.Spec.Taints
	kept.Status.Allocatable = object.Status.Allocatable
	c.byName[kept.Name] = len(c.nodes)
	c.nodes = append(c.nodes, node{object: kept})
	c.report.Nodes++
}

// AddPod adds a pod.
func (c *Cluster) AddPod(object *v1.Pod) error {
	c.report.Pods++
	if object.Status.Phase == v1.PodSucceeded || object.Status.Phase == v1.PodFailed {
		c.report.Ended++
		return nil
	}
	if object.Spec.NodeName == "" {
		c.report.Pending++
		return nil
	}
	number, there := c.byName[object.Spec.NodeName]
	if !there {
		c.report.OnMissingNodes++
		return nil
	}
	class, err := c.class(object)
	if err != nil {
		return err
	}
	pod := placed{class: class, name: object.Name, node: number, terminating: object.DeletionTimestamp != nil}
	class.pods = append(class.pods, pod)
	c.nodes[number].pods = append(c.nodes[number].pods, pod)
	c.report.Bound++
	return nil
}

// class returns the class of a pod.
func (c *Cluster) class(object *v1.Pod) (*class, error) {
	made := &class{namespace: object.Namespace, labels: object.Labels, spec: keptSpec(&object.Spec)}
	made.requests = resourcehelper.PodRequests(object, resourcehelper.PodResourcesOptions{UseStatusResources: true})
	key, err := json.Marshal([]any{made.namespace, made.labels, made.spec, made.requests})
	if err != nil {
		return nil, fmt.Errorf("reading pod %s/%s: %w", object.Namespace, object.Name, err)
	}
	if known := c.classes[string(key)]; known != nil {
		return known, nil
	}
	made.required = nodeaffinity.GetRequiredNodeAffinity(&v1.Pod{Spec: made.spec})
	c.classes[string(key)] = made
	c.order = append(c.order, made)
	return made, nil
}

// keptSpec is what rules look at.
func keptSpec(spec *v1.PodSpec) v1.PodSpec {
	kept := v1.PodSpec{
		NodeSelector: spec.NodeSelector, Tolerations: spec.Tolerations, Affinity: spec.Affinity,
		TopologySpreadConstraints: spec.TopologySpreadConstraints,
	}
	for i := range spec.InitContainers {
		// Other init containers have ended before a container could miss the port.
		if policy := spec.InitContainers[i].RestartPolicy; policy != nil && *policy == v1.ContainerRestartPolicyAlways {
			kept.Containers = appendHostPorts(kept.Containers, spec.InitContainers[i].Ports)
		}
	}
	for i := range spec.Containers {
		kept.Containers = appendHostPorts(kept.Containers, spec.Containers[i].Ports)
	}
	return kept
}

// appendHostPorts adds a container with those ports that are the node's.
func appendHostPorts(kept []v1.Container, ports []v1.ContainerPort) []v1.Container {
	for _, port := range ports {
		if port.HostPort > 0 {
			kept = append(kept, v1.Container{Ports: []v1.ContainerPort{port}})
		}
	}
	return kept
}
