package ladder

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
)

const (
	namespace      = "k1m-bench"
	deploymentName = "ladder"
)

// workload is what became of the pods.
type workload struct {
	// replicas are the pods of the Deployment that became ready, and rollout is the time in seconds until all were.
	replicas int
	rollout  float64
	// pods are the further pods that run, and perSecond is their rate from the first request until all run.
	pods      int
	perSecond float64
}

// deploy rolls out a Deployment. It is no error if some of its pods do not become ready; a note says so.
func (s *step) deploy(ctx context.Context, w *workload) error {
	if err := s.cluster.Clients.EnsureNamespace(ctx, namespace); err != nil {
		return err
	}
	count, deployments := s.options.Replicas.N, s.cluster.Client.AppsV1().Deployments(namespace)
	begun := time.Now()
	if _, err := deployments.Create(ctx, deployment(count), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating a Deployment: %w", err)
	}
	err := s.await(ctx, "pods of a Deployment ready", count, func(ctx context.Context) (int, error) {
		d, err := deployments.Get(ctx, deploymentName, metav1.GetOptions{})
		if err != nil {
			return 0, err
		}
		w.replicas = int(d.Status.ReadyReplicas)
		return w.replicas, nil
	})
	w.rollout = time.Since(begun).Seconds()
	return s.noteStalled(ctx, err)
}

func deployment(replicas int) *appsv1.Deployment {
	labels := map[string]string{"app": deploymentName}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: deploymentName, Namespace: namespace, Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(replicas)),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: bulk.DefaultPodShape().Image}}},
			},
		},
	}
}

// fill creates the pods of the rung, and waits until they run.
func (s *step) fill(ctx context.Context, w *workload) error {
	if s.rung.pods == 0 {
		return nil
	}
	pods, err := bulk.NewPods(bulk.DefaultPodShape())
	if err != nil {
		return err
	}
	options := bulk.DefaultOptions(bulk.PodPrefix)
	options.Range.Count = s.rung.pods
	begun := time.Now()
	task := s.Display.Task(s.rung.title()+": pods created", s.rung.pods)
	options.Progress = task.Set
	created, err := bulk.CreatePods(ctx, s.cluster.Clients, pods, namespace, options)
	if err != nil {
		task.Fail(err.Error())
		return s.noteStalled(ctx, err)
	}
	task.Done(fmt.Sprintf("%.0f/s", created.PerSecond))
	running := s.Display.Task(s.rung.title()+": pods running", s.rung.pods)
	options.Progress = func(done int) {
		w.pods = done
		running.Set(done)
	}
	if err := bulk.AwaitPodsRunning(ctx, s.cluster.Clients, namespace, options, s.options.Timeout); err != nil {
		running.Fail(err.Error())
		return s.noteStalled(ctx, err)
	}
	w.pods, w.perSecond = s.rung.pods, float64(s.rung.pods)/time.Since(begun).Seconds()
	running.Done(fmt.Sprint(w.pods))
	return nil
}

// noteStalled turns an error of a part into a note, so that the parts after it are measured. The verdicts show what
// was not reached. If ctx has ended, it returns the error of ctx.
func (s *step) noteStalled(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	s.Result.Note("Rung %s: %v", s.rung.title(), err)
	return nil
}
