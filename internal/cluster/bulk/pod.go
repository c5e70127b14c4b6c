package bulk

import (
	"context"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// PodPrefix is the default name prefix of pods.
const PodPrefix = "pod-"

// PodShape describes pods. If Template is set, Image, CPU and Memory have no effect, and the labels of the
// template take precedence over Labels.
type PodShape struct {
	Template  string // file with a Pod; empty for none
	Namespace string
	Image     string
	CPU       string // requested quantity
	Memory    string // requested quantity
	Labels    map[string]string
}

// DefaultPodShape returns the shape of a small pod, so that many pods fit on a node.
func DefaultPodShape() PodShape {
	return PodShape{Namespace: metav1.NamespaceDefault, Image: "registry.k8s.io/pause:3.10", CPU: "10m", Memory: "16Mi"}
}

// AddFlags defines flags for the fields other than Namespace.
func (s *PodShape) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&s.Template, "template", s.Template, "file with a Pod manifest as template; its values override the flags below")
	fs.StringVar(&s.Image, "image", s.Image, "container image; simulated nodes do not pull it")
	fs.StringVar(&s.CPU, "cpu", s.CPU, "CPU request of a pod")
	fs.StringVar(&s.Memory, "memory", s.Memory, "memory request of a pod")
	fs.StringToStringVar(&s.Labels, "labels", s.Labels, "additional labels, key=value,…")
}

// Pods builds the pods of one shape.
type Pods struct {
	template *corev1.Pod
	// nodes are the nodes to which the pods are bound from the start; empty for pods that a scheduler binds.
	nodes Range
}

// NewPods returns a builder for pods. It returns a usage error if the shape is invalid or its template
// cannot be read.
func NewPods(s PodShape) (*Pods, error) {
	requests, err := quantities(map[corev1.ResourceName]string{corev1.ResourceCPU: s.CPU, corev1.ResourceMemory: s.Memory})
	if err != nil {
		return nil, err
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		Containers: []corev1.Container{{
			Name: "main", Image: s.Image, Resources: corev1.ResourceRequirements{Requests: requests},
		}},
	}}
	if s.Template != "" {
		if pod, err = ReadPod(s.Template); err != nil {
			return nil, err
		}
	}
	pod.ObjectMeta = metav1.ObjectMeta{Labels: pod.Labels, Annotations: pod.Annotations}
	pod.Labels = withDefaults(pod.Labels, s.Labels)
	return &Pods{template: pod}, nil
}

// On returns a builder of the same pods, bound to the nodes of a range in turn. No scheduler works on them.
func (p *Pods) On(nodes Range) *Pods { return &Pods{template: p.template, nodes: nodes} }

// MakeNumber builds the pod with a name and a number. The number determines the node of a pod that is bound from the
// start.
func (p *Pods) MakeNumber(namespace, name string, number int) *corev1.Pod {
	pod := p.Make(namespace, name)
	if p.nodes.Count > 0 {
		pod.Spec.NodeName = p.nodes.Name(number % p.nodes.Count)
	}
	return pod
}

// Make builds one pod, which has no node.
func (p *Pods) Make(namespace, name string) *corev1.Pod {
	pod := p.template.DeepCopy()
	pod.Namespace, pod.Name = namespace, name
	return pod
}

// CreatePods creates the namespace if it does not exist, and the pods of the range that do not exist.
func CreatePods(ctx context.Context, clients *Clients, pods *Pods, namespace string, o Options) (Summary, error) {
	if err := clients.EnsureNamespace(ctx, namespace); err != nil {
		return Summary{}, err
	}
	existing, next, err := clients.existing(ctx, podKind, namespace, o.Range)
	if err != nil {
		return Summary{}, err
	}
	summary, err := Run(ctx, Job{
		Range: o.Range, Skip: existing, Concurrency: o.Concurrency, Progress: o.Progress,
		AlreadyDone: apierrors.IsAlreadyExists,
		Do: func(ctx context.Context, name string, number, connection int) error {
			return clients.create(ctx, connection, podKind, namespace, pods.MakeNumber(namespace, name, o.Range.First+number))
		},
	})
	summary.NextFirst = next
	return summary, err
}

// CreatePod makes a single attempt to create a pod over the given connection.
func (c *Clients) CreatePod(ctx context.Context, connection int, pod *corev1.Pod) error {
	return c.create(ctx, connection, podKind, pod.Namespace, pod)
}

// DeletePod makes a single attempt to delete a pod over the given connection.
func (c *Clients) DeletePod(ctx context.Context, connection int, namespace, name string) error {
	return c.delete(ctx, connection, podKind, namespace, name)
}

// DeletePods requests the deletion of the pods of the range that exist.
func DeletePods(ctx context.Context, clients *Clients, namespace string, o Options) (Summary, error) {
	return Run(ctx, Job{
		Range: o.Range, Concurrency: o.Concurrency, Progress: o.Progress,
		AlreadyDone: apierrors.IsNotFound,
		Do: func(ctx context.Context, name string, _, connection int) error {
			return clients.delete(ctx, connection, podKind, namespace, name)
		},
	})
}

// PodRunning reports whether a [corev1.Pod] is running or has succeeded.
func PodRunning(object runtime.Object) bool {
	phase := object.(*corev1.Pod).Status.Phase
	return phase == corev1.PodRunning || phase == corev1.PodSucceeded
}

// ValidateNamespace returns a usage error if a name is not a valid namespace name.
func ValidateNamespace(name string) error {
	if len(validation.IsDNS1123Label(name)) > 0 {
		return usage.Errorf("--namespace %q: use a-z, 0-9 and '-'; the first and last character must be a letter or digit", name)
	}
	return nil
}
