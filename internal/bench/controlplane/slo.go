package controlplane

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// fillPercentages are the numbers of pods per node at each step, in percent of --pods-per-node.
var fillPercentages = []int{10, 25, 50, 100}

const podsPerDeployment = 30

var slo = experiment.Experiment{
	Name:  "slo",
	Short: "Fill a cluster in steps, create and delete pods, and check the Kubernetes SLOs",
	Long: `Fill a cluster with Deployments to 10, 25, 50 and 100 % of --pods-per-node. At each step,
start --sample single pods at a fixed rate; the table shows their startup latency. Then create
and delete pods, scale a Deployment, read single pods and list pods for the duration --churn. At
the end delete everything.

As in clusterloader2, the startup latency counts from a pod's creationTimestamp until a watch shows
the pod running. The timestamp has whole seconds, so the result is up to 1 s longer than the latency
since the request, which the table shows as well. API latencies come from histograms of the API
server over the whole experiment, without watches.`,
	Example: `  k1m bench slo
  k1m bench slo --nodes 100 --churn 5m --stores mem_etcd`,
	New: func() experiment.Options {
		return &sloOptions{
			clusters: defaultClusters(experiment.ByScale(100, 10)), PodsPerNode: 30, Sample: experiment.ByScale(100, 10),
			SampleRate: 10, Churn: experiment.SpanByScale(time.Minute, 10*time.Second), ChurnRate: 20,
		}
	},
}

type sloOptions struct {
	clusters
	PodsPerNode int
	Sample      experiment.Count
	SampleRate  float64
	Churn       experiment.Span
	ChurnRate   float64
}

// AddFlags binds the options to flags.
func (o *sloOptions) AddFlags(fs *pflag.FlagSet) {
	o.clusters.AddFlags(fs)
	fs.IntVar(&o.PodsPerNode, "pods-per-node", o.PodsPerNode, "number of pods per node in the full cluster")
	fs.Var(&o.Sample, "sample", o.Sample.Usage("number of pods whose startup is measured at each step"))
	fs.Float64Var(&o.SampleRate, "sample-rate", o.SampleRate, "number of sample pods to create per second")
	fs.Var(&o.Churn, "churn", o.Churn.Usage("how long to create and delete pods in the full cluster"))
	fs.Float64Var(&o.ChurnRate, "churn-rate", o.ChurnRate,
		"number of pods to create and to delete per second during the churn")
}

// Validate returns the first invalid option as a usage error.
func (o *sloOptions) Validate() error {
	room := bulk.DefaultNodeShape().Pods
	switch {
	case o.PodsPerNode < 1 || o.PodsPerNode > room/2:
		return usage.Errorf("--pods-per-node %d: choose 1 to %d", o.PodsPerNode, room/2)
	case o.SampleRate <= 0:
		return usage.Errorf("--sample-rate %g: must be more than 0", o.SampleRate)
	case o.ChurnRate <= 0:
		return usage.Errorf("--churn-rate %g: must be more than 0", o.ChurnRate)
	}
	return o.clusters.Validate()
}

// Run implements experiment.Options.
func (o *sloOptions) Run(ctx context.Context, run *experiment.Run) error {
	startup := run.Result.Table("Pod startup", "store", "full, %", "pods", "of", "p50, s", "p90, s", "p99, s",
		"since the request: p50, s", "p90, s", "p99, s")
	return o.each(ctx, run, func(ctx context.Context, t *storeRun) error {
		if err := t.prepare(ctx); err != nil {
			return err
		}
		watching, stop := context.WithCancel(ctx)
		defer stop()
		s := t.watchPods(watching, "")
		window := t.Sampler.Begin(ctx)
		err := o.fillAndChurn(ctx, t, s, startup)
		m := window.End(context.WithoutCancel(ctx))
		t.Result.CallTable("API calls"+on(t.store), m.Calls)
		t.judge(experiment.JudgeCalls(m.Calls)...)
		for _, verdict := range experiment.JudgeCalls(m.Calls) {
			t.figure(verdict.Name, "s", verdict.Measured, false)
		}
		return err
	})
}

// fillAndChurn fills the cluster, measures the startup of sample pods at each step, churns, and deletes
// everything.
func (o *sloOptions) fillAndChurn(ctx context.Context, t *storeRun, s *startups, table *experiment.Table) error {
	nodes, err := t.nodes(ctx, o.Nodes.N)
	if err != nil {
		return err
	}
	full, have, deployments := nodes*o.PodsPerNode, 0, 0
	for _, percent := range fillPercentages {
		wanted := max(full*percent/100, 1)
		if err := t.deploy(ctx, &deployments, wanted-have); err != nil {
			return err
		}
		have = wanted
		if err := t.awaitRunning(ctx, s, have); err != nil {
			return err
		}
		if err := o.sample(ctx, t, s, percent, have, table); err != nil {
			return err
		}
	}
	t.mark("churn starts", time.Now())
	if err := o.churn(ctx, t, nodes); err != nil {
		return err
	}
	t.mark("deletion starts", time.Now())
	return t.undeploy(ctx, s, deployments)
}

// deploy creates Deployments with this number of pods in all. deployments counts them.
func (t *storeRun) deploy(ctx context.Context, deployments *int, pods int) error {
	for pods > 0 {
		size := min(pods, podsPerDeployment)
		pods -= size
		object := deployment(fmt.Sprintf("fill-%04d", *deployments), size)
		if _, err := t.Client.AppsV1().Deployments(namespace).Create(ctx, object, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("creating a Deployment: %w", err)
		}
		*deployments++
	}
	return nil
}

func deployment(name string, replicas int) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(int32(replicas)),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					Containers:  []corev1.Container{{Name: "main", Image: bulk.DefaultPodShape().Image}},
					Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
				},
			},
		},
	}
}

// sample starts single pods in a cluster with have pods, measures their startup, and deletes them.
func (o *sloOptions) sample(ctx context.Context, t *storeRun, s *startups, percent, have int, table *experiment.Table) error {
	if err := t.AwaitQuiet(ctx); err != nil {
		return err
	}
	prefix := fmt.Sprintf("sample-%d-", percent)
	s.measureOnly(prefix)
	created, err := t.createPods(ctx, s, prefix, o.Sample.N, 64, o.SampleRate)
	if err != nil {
		return err
	}
	if err := t.awaitRunning(ctx, s, have+int(created.Latencies.Count())); err != nil {
		return err
	}
	sinceCreation, sinceRequest := s.measured()
	table.Add(t.store, percent, have, sinceCreation.Count(), sinceCreation.Seconds(50), sinceCreation.Seconds(90), sinceCreation.Seconds(99),
		sinceRequest.Seconds(50), sinceRequest.Seconds(90), sinceRequest.Seconds(99))
	for _, percentile := range []float64{50, 99} {
		t.Result.Line(experiment.Series{
			Plot: "pod startup", Name: fmt.Sprintf("p%g%s", percentile, on(t.store)), X: "percent full", Unit: "s",
		}, float64(percent), sinceCreation.Seconds(percentile))
	}
	if percent == 100 {
		t.judge(experiment.JudgeStartup(sinceCreation))
		t.figure("startup p50 since the request, full cluster", "s", sinceRequest.Seconds(50), false)
		t.figure("startup p99 since the request, full cluster", "s", sinceRequest.Seconds(99), false)
	}
	if _, err := t.deletePods(ctx, prefix, o.Sample.N, 64); err != nil {
		return err
	}
	return t.awaitGone(ctx, s, have)
}

// churn creates, reads and deletes pods for --churn. About once per second it also scales a Deployment and
// lists all pods.
func (o *sloOptions) churn(ctx context.Context, t *storeRun, nodes int) error {
	pods, err := usualPods()
	if err != nil {
		return err
	}
	begun := time.Now()
	churning, stop := context.WithTimeout(ctx, o.Churn.D)
	defer stop()
	// A pod is deleted after this number of further pods was created: after about 2 s.
	lifetime := int(2*o.ChurnRate) + 1
	size := min(podsPerDeployment, max(nodes*o.PodsPerNode*fillPercentages[0]/100, 1))
	task := t.Display.Task("churn", int(o.Churn.D.Seconds()))
	load := t.podLoad(0, 64, o.ChurnRate)
	load.Workers = 64
	load.Do = func(ctx context.Context, number, worker int) error {
		task.Set(int(time.Since(begun).Seconds()))
		if number%int(max(o.ChurnRate, 1)) == 0 {
			if err := t.scaleAndList(ctx, size, number); err != nil {
				return err
			}
		}
		return t.replacePod(ctx, pods, number, lifetime, worker)
	}
	return t.finishLoad(ctx, load, load.Run(churning), task)
}

// replacePod creates and reads a pod, and deletes the pod that was created lifetime pods earlier.
func (t *storeRun) replacePod(ctx context.Context, pods *bulk.Pods, number, lifetime, worker int) error {
	name := podName("churn-", number)
	if err := t.Clients.CreatePod(ctx, worker, pods.Make(namespace, name)); err != nil {
		return err
	}
	_, err := t.Clients.Connection(worker).CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err == nil && number >= lifetime {
		err = t.Clients.DeletePod(ctx, worker, namespace, podName("churn-", number-lifetime))
	}
	if apierrors.IsNotFound(err) {
		return nil // another worker has not yet created the older pod
	}
	return err
}

// scaleAndList scales the first Deployment, which has size pods, to size or one pod less, and lists all
// pods.
func (t *storeRun) scaleAndList(ctx context.Context, size, number int) error {
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, size-number%2)
	_, err := t.Client.AppsV1().Deployments(namespace).Patch(ctx, "fill-0000", types.MergePatchType, patch, metav1.PatchOptions{}, "scale")
	if err == nil {
		_, err = t.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	}
	return err
}

// undeploy deletes the Deployments and all pods of the namespace, and waits until the pods are gone.
func (t *storeRun) undeploy(ctx context.Context, s *startups, deployments int) error {
	var errs []error
	for i := range deployments {
		policy := metav1.DeletePropagationBackground
		err := t.Client.AppsV1().Deployments(namespace).Delete(ctx, fmt.Sprintf("fill-%04d", i), metav1.DeleteOptions{PropagationPolicy: &policy})
		errs = append(errs, err)
	}
	errs = append(errs, t.Client.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("deleting the Deployments and pods: %w", err)
	}
	return t.awaitGone(ctx, s, 0)
}
