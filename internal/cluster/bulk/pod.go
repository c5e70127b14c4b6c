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

// PodPrefix begins the names of pods unless the user says otherwise.
const PodPrefix = "pod-"

// PodShape says what pods look like. A template wins over the other fields.
type PodShape struct {
	Template  string
	Namespace string
	Image     string
	CPU       string
	Memory    string
	Labels    map[string]string
}

// DefaultPodShape is small: many fit on a node.
func DefaultPodShape() PodShape {
	return PodShape{Namespace: metav1.NamespaceDefault, Image: "registry.k8s.io/pause:3.10", CPU: "10m", Memory: "16Mi"}
}

// AddFlags binds the shape to flags.
func (s *PodShape) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&s.Template, "template", s.Template, "file with a Pod that all are made from; wins over the flags below")
	fs.StringVar(&s.Image, "image", s.Image, "image of the container; never pulled on simulated nodes")
	fs.StringVar(&s.CPU, "cpu", s.CPU, "cores that a pod requests")
	fs.StringVar(&s.Memory, "memory", s.Memory, "memory that a pod requests")
	fs.StringToStringVar(&s.Labels, "labels", s.Labels, "further labels, key=value,…")
}

// Pods makes the pods of one shape.
type Pods struct{ template *corev1.Pod }

// NewPods checks the shape.
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
	pod.Labels = fill(pod.Labels, s.Labels)
	return &Pods{template: pod}, nil
}

// Make builds one pod.
func (p *Pods) Make(namespace, name string) *corev1.Pod {
	pod := p.template.DeepCopy()
	pod.Namespace, pod.Name = namespace, name
	return pod
}

// CreatePods makes those of the range that do not exist, and the namespace.
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
		Moot: apierrors.IsAlreadyExists,
		Do: func(ctx context.Context, name string, _, connection int) error {
			return clients.create(ctx, connection, podKind, namespace, pods.Make(namespace, name))
		},
	})
	summary.NextFirst = next
	return summary, err
}

// CreatePod creates one pod, once, over one of the connections.
func (c *Clients) CreatePod(ctx context.Context, connection int, pod *corev1.Pod) error {
	return c.create(ctx, connection, podKind, pod.Namespace, pod)
}

// DeletePod asks for the end of one pod, once, over one of the connections.
func (c *Clients) DeletePod(ctx context.Context, connection int, namespace, name string) error {
	return c.delete(ctx, connection, podKind, namespace, name)
}

// DeletePods asks for the end of those of the range that exist.
func DeletePods(ctx context.Context, clients *Clients, namespace string, o Options) (Summary, error) {
	return Run(ctx, Job{
		Range: o.Range, Concurrency: o.Concurrency, Progress: o.Progress,
		Moot: apierrors.IsNotFound,
		Do: func(ctx context.Context, name string, _, connection int) error {
			return clients.delete(ctx, connection, podKind, namespace, name)
		},
	})
}

// PodRunning says whether a pod has started; one that succeeded had too.
func PodRunning(object runtime.Object) bool {
	phase := object.(*corev1.Pod).Status.Phase
	return phase == corev1.PodRunning || phase == corev1.PodSucceeded
}

// ValidateNamespace reports a name that no namespace can have.
func ValidateNamespace(name string) error {
	if len(validation.IsDNS1123Label(name)) > 0 {
		return usage.Errorf("--namespace %q: use a-z, 0-9 and '-', beginning and ending with a letter or digit", name)
	}
	return nil
}
