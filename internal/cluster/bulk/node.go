package bulk

import (
	"context"
	"fmt"
	"maps"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/k8s-1m/k8s-1m/internal/cluster/kube"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// NodePrefix is the name prefix of the nodes that `k1m up` creates.
const NodePrefix = "node-"

// NodeShape describes simulated nodes. The values in the template take precedence over the other fields.
type NodeShape struct {
	Template string // file with a Node; empty for none
	CPU      string // quantity
	Memory   string // quantity
	Pods     int    // maximum number of pods
	Labels   map[string]string
	Zones    int // number of topology zones; nodes are spread evenly over the zones
}

// DefaultNodeShape returns the shape of a server with 32 cores and 256 GiB of memory.
func DefaultNodeShape() NodeShape {
	return NodeShape{CPU: "32", Memory: "256Gi", Pods: 110, Zones: 3}
}

// AddFlags defines a flag for each field.
func (s *NodeShape) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&s.Template, "template", s.Template, "file with a Node manifest as template; its values override the flags below")
	fs.StringVar(&s.CPU, "cpu", s.CPU, "CPU capacity of a node")
	fs.StringVar(&s.Memory, "memory", s.Memory, "memory capacity of a node")
	fs.IntVar(&s.Pods, "pods", s.Pods, "maximum number of pods on a node")
	fs.StringToStringVar(&s.Labels, "labels", s.Labels, "additional labels, key=value,…")
	fs.IntVar(&s.Zones, "zones", s.Zones, "number of topology zones; nodes are spread evenly over the zones")
}

// Nodes builds the nodes of one shape.
type Nodes struct {
	template *corev1.Node
	zones    int
}

// NewNodes returns a builder for nodes. It returns a usage error if the shape is invalid or its template
// cannot be read.
func NewNodes(s NodeShape) (*Nodes, error) {
	if s.Zones < 1 {
		return nil, usage.Errorf("--zones %d: nodes need at least one zone", s.Zones)
	}
	if s.Pods < 0 {
		return nil, usage.Errorf("--pods %d: cannot be negative", s.Pods)
	}
	capacity, err := quantities(map[corev1.ResourceName]string{
		corev1.ResourceCPU: s.CPU, corev1.ResourceMemory: s.Memory, corev1.ResourcePods: fmt.Sprint(s.Pods),
	})
	if err != nil {
		return nil, err
	}
	template := &corev1.Node{}
	if s.Template != "" {
		if template, err = ReadNode(s.Template); err != nil {
			return nil, err
		}
	}
	setNodeDefaults(template, s.Labels, capacity)
	return &Nodes{template: template, zones: s.Zones}, nil
}

// setNodeDefaults adds labels, the annotation of simulated nodes and the capacity to a template, where the
// template does not set them.
func setNodeDefaults(node *corev1.Node, labels map[string]string, capacity corev1.ResourceList) {
	node.ObjectMeta = metav1.ObjectMeta{Labels: node.Labels, Annotations: node.Annotations}
	node.Labels = withDefaults(node.Labels, labels)
	node.Labels = withDefaults(node.Labels, map[string]string{
		corev1.LabelOSStable:   "linux",
		corev1.LabelArchStable: "amd64",
		"type":                 "kwok",
	})
	node.Annotations = withDefaults(node.Annotations, map[string]string{kube.SimulatedNodeAnnotation: kube.SimulatedNodeValue})
	node.Status.Capacity = withDefaults(node.Status.Capacity, capacity)
	node.Status.Allocatable = withDefaults(node.Status.Allocatable, node.Status.Capacity)
}

// Make builds the node with a name and a number. The number determines the zone.
func (n *Nodes) Make(name string, number int) *corev1.Node {
	node := n.template.DeepCopy()
	n.Identify(node, name, number)
	return node
}

// Identify sets everything in which a node that Make has built differs from the other nodes of its shape.
func (n *Nodes) Identify(node *corev1.Node, name string, number int) {
	node.Name = name
	node.Labels[corev1.LabelHostname] = name
	if _, fixed := n.template.Labels[corev1.LabelTopologyZone]; !fixed {
		node.Labels[corev1.LabelTopologyZone] = fmt.Sprintf("zone-%d", number%n.zones)
	}
}

// CreateNodes creates the nodes of the range that do not exist.
func CreateNodes(ctx context.Context, clients *Clients, nodes *Nodes, o Options) (Summary, error) {
	existing, next, err := clients.existing(ctx, nodeKind, "", o.Range)
	if err != nil {
		return Summary{}, err
	}
	summary, err := Run(ctx, Job{
		Range: o.Range, Skip: existing, Concurrency: o.Concurrency, Progress: o.Progress,
		AlreadyDone: apierrors.IsAlreadyExists,
		Do: func(ctx context.Context, name string, number, connection int) error {
			return clients.create(ctx, connection, nodeKind, "", nodes.Make(name, o.Range.First+number))
		},
	})
	summary.NextFirst = next
	return summary, err
}

// DeleteNodes deletes the nodes of the range that exist.
func DeleteNodes(ctx context.Context, clients *Clients, o Options) (Summary, error) {
	return Run(ctx, Job{
		Range: o.Range, Concurrency: o.Concurrency, Progress: o.Progress,
		AlreadyDone: apierrors.IsNotFound,
		Do: func(ctx context.Context, name string, _, connection int) error {
			return clients.delete(ctx, connection, nodeKind, "", name)
		},
	})
}

// CountNodes counts all nodes of the cluster, regardless of their names.
func CountNodes(ctx context.Context, clients *Clients) (int, error) {
	resource := clients.metadata.Resource(schema.GroupVersionResource{Version: "v1", Resource: nodeKind.resource})
	first, err := listWithRetries(ctx, resource, metav1.ListOptions{Limit: 1})
	if err != nil {
		return 0, fmt.Errorf("counting nodes: %w", err)
	}
	count := len(first.Items)
	if first.Continue == "" {
		return count, nil
	}
	if rest := first.RemainingItemCount; rest != nil {
		return count + int(*rest), nil
	}
	count = 0
	err = clients.forEachPage(ctx, nodeKind, "", func(page *metav1.PartialObjectMetadataList) { count += len(page.Items) })
	return count, err
}

// NodeReady reports whether the Ready condition of a [corev1.Node] is true.
func NodeReady(object runtime.Object) bool {
	for _, condition := range object.(*corev1.Node).Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// quantities parses quantities. The keys are the names of the flags.
func quantities(texts map[corev1.ResourceName]string) (corev1.ResourceList, error) {
	list := corev1.ResourceList{}
	for name, text := range texts {
		quantity, err := resource.ParseQuantity(text)
		if err != nil || quantity.Sign() < 0 {
			return nil, usage.Errorf("--%s %q: not a quantity; write it like 500m, 4 or 16Gi", name, text)
		}
		list[name] = quantity
	}
	return list, nil
}

// withDefaults returns a copy of given, with the entries of defaults whose keys are not in given.
func withDefaults[M ~map[K]V, K comparable, V any](given, defaults M) M {
	filled := maps.Clone(defaults)
	if filled == nil {
		filled = M{}
	}
	maps.Copy(filled, given)
	return filled
}
