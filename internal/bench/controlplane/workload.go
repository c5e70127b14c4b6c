package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/kubernetes/pkg/kubelet/envvars"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
)

// The workloads are those of kube-burner's node-density benchmarks, and have the same names.
const (
	workloadPods  = "pods"
	workloadCNI   = "cni"
	workloadHeavy = "heavy"

	// iterationsPerNamespace is the default of kube-burner.
	iterationsPerNamespace = 1000
)

// workload is the number of objects of one iteration.
type workload struct{ pods, services int }

var workloads = map[string]workload{workloadPods: {1, 0}, workloadCNI: {2, 1}, workloadHeavy: {2, 1}}

// deploymentNames are the names of the two Deployments of an iteration. The Service selects the pods of the
// first.
var deploymentNames = map[string][2]string{workloadCNI: {"webserver", "client"}, workloadHeavy: {"postgres", "perfapp"}}

// namespaceOf returns the namespace of an iteration.
func (o *densityOptions) namespaceOf(iteration int) string {
	if !o.Namespaced {
		return namespace
	}
	return fmt.Sprintf("%s-%d", namespace, iteration/iterationsPerNamespace)
}

// servicesOfNamespace returns the largest number of Services in a namespace.
func (o *densityOptions) servicesOfNamespace(iterations int) int {
	if o.Namespaced {
		return min(iterations, iterationsPerNamespace)
	}
	return iterations
}

// create creates the objects of all iterations. --rate limits the number of pods per second.
func (o *densityOptions) create(ctx context.Context, t *storeRun, w workload, iterations int) (experiment.Load, error) {
	for i := 0; i < iterations; i += iterationsPerNamespace {
		if err := t.Clients.EnsureNamespace(ctx, o.namespaceOf(i)); err != nil {
			return experiment.Load{}, err
		}
	}
	pods, err := usualPods()
	if err != nil {
		return experiment.Load{}, err
	}
	task := t.Display.Task("iterations created", iterations)
	load := t.podLoad(iterations, 64, o.Rate/float64(w.pods))
	load.Progress = task.Set
	load.Do = func(ctx context.Context, number, worker int) error {
		if o.Workload == workloadPods {
			return t.Clients.CreatePod(ctx, worker, pods.Make(namespace, podName("density-", number)))
		}
		return o.iteration(ctx, t, number, worker)
	}
	done := load.Run(ctx)
	return load, t.finishLoad(ctx, load, done, task)
}

// iteration creates the objects of one iteration: a Service, and two Deployments of one pod each.
func (o *densityOptions) iteration(ctx context.Context, t *storeRun, number, worker int) error {
	ns, client := o.namespaceOf(number), t.Clients.Connection(worker)
	if _, err := client.CoreV1().Services(ns).Create(ctx, serviceOf(numbered(deploymentNames[o.Workload][0], number)), metav1.CreateOptions{}); err != nil {
		return err
	}
	for _, name := range deploymentNames[o.Workload] {
		if _, err := client.AppsV1().Deployments(ns).Create(ctx, deploymentWithProbes(numbered(name, number)), metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// numbered returns the name of an object of an iteration.
func numbered(name string, iteration int) string { return fmt.Sprintf("%s-%d", name, iteration) }

func serviceOf(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": name},
			Ports:    []corev1.ServicePort{{Name: "main", Protocol: corev1.ProtocolTCP, Port: 8080, TargetPort: intstr.FromInt32(8080)}},
		},
	}
}

// deploymentWithProbes returns a Deployment of one pod whose container has the probes of kube-burner.
func deploymentWithProbes(name string) *appsv1.Deployment {
	d := deployment(name, 1)
	d.Namespace = ""
	probe := &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(8080)}},
		PeriodSeconds: 10, TimeoutSeconds: 5,
	}
	d.Spec.Template.Spec.Containers[0].ReadinessProbe = probe
	d.Spec.Template.Spec.Containers[0].LivenessProbe = probe
	return d
}

// remove deletes all iterations, and waits until their pods are gone.
func (o *densityOptions) remove(ctx context.Context, t *storeRun, s *startups, iterations int) error {
	policy := metav1.DeletePropagationBackground
	options, everything := metav1.DeleteOptions{PropagationPolicy: &policy}, metav1.ListOptions{}
	var errs []error
	for i := 0; i < iterations; i += iterationsPerNamespace {
		ns := o.namespaceOf(i)
		errs = append(errs,
			t.Client.AppsV1().Deployments(ns).DeleteCollection(ctx, options, everything),
			t.Client.CoreV1().Pods(ns).DeleteCollection(ctx, options, everything))
		if !o.Namespaced {
			break
		}
	}
	for i := range iterations {
		if o.Workload != workloadPods {
			errs = append(errs, t.Client.CoreV1().Services(o.namespaceOf(i)).Delete(ctx, numbered(deploymentNames[o.Workload][0], i), metav1.DeleteOptions{}))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("removing the workload: %w", err)
	}
	if err := t.awaitGone(ctx, s, 0); err != nil {
		return err
	}
	return t.AwaitQuiet(ctx)
}

// watchAllPods watches the pods of all namespaces, and counts the pods whose startup takes longer than the
// limit.
func (t *storeRun) watchAllPods(ctx context.Context, limit time.Duration) *startups {
	s := newStartups("")
	s.limit = limit
	return t.watchNamespace(ctx, metav1.NamespaceAll, s)
}

// startWithServices starts a program with the environment that kubelet creates for a container in a
// namespace with this number of Services. It returns the size of the environment in bytes.
func startWithServices(services int) (size int, err error) {
	objects := make([]*corev1.Service, services)
	for i := range objects {
		objects[i] = serviceOf(numbered(deploymentNames[workloadHeavy][0], i))
		objects[i].Spec.ClusterIP = fmt.Sprintf("10.%d.%d.%d", 96+i>>16, i>>8&255, i&255)
	}
	var environment []string
	for _, v := range envvars.FromServices(objects) {
		variable := v.Name + "=" + v.Value
		environment = append(environment, variable)
		size += len(variable) + 1
	}
	program := exec.Command("true")
	program.Env = environment
	return size, program.Run()
}

// measureEnvironment increases the number of Services in a namespace until a container cannot start, and
// reports the size of the environment at each step.
func measureEnvironment(r *experiment.Result) {
	table := r.Table("Environment of a container by the number of Services in its namespace", "Services", "environment, KiB", "starting a program")
	const step, most = 500, 20_000
	for services := step; services <= most; services += step {
		size, err := startWithServices(services)
		verdict := "starts"
		if err != nil {
			verdict = err.Error()
		}
		table.Add(services, float64(size)/1024, verdict)
		if err != nil {
			return
		}
	}
}
