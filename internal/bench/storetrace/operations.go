package storetrace

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	applycore "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/kube"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
)

const (
	namespace = "life"
	image     = "registry.example/app:1"
	nextImage = "registry.example/app:2"
	// pageSize is small, so that a list has several pages.
	pageSize = 10
	// pollInterval is the interval at which await polls.
	pollInterval = 200 * time.Millisecond
)

// runner executes the operations in a cluster.
type runner struct {
	options Options
	client  kubernetes.Interface
	dynamic dynamic.Interface
}

// group is a group of operations.
type group struct {
	name    string
	execute func(context.Context) error
}

func newRunner(dir clusterdir.Dir, o Options) (*runner, error) {
	config, err := kube.Config(dir.Kubeconfig(pki.SuperAdmin.File))
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connecting to the API server: %w", err)
	}
	// Custom resources do not support protobuf.
	config.ContentType, config.AcceptContentTypes = "", ""
	custom, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connecting to the API server: %w", err)
	}
	return &runner{options: o, client: client, dynamic: custom}, nil
}

// groups returns the groups of operations in the order of their execution.
func (r *runner) groups() []group {
	return []group{
		{"namespace", r.createNamespace},
		{"ConfigMaps and Secrets", r.configure},
		{"Service", r.createService},
		{"Deployment: roll out", r.rollOut},
		{"Deployment: scale", r.scale},
		{"Deployment: change the image", r.changeImage},
		{"Job", r.runJob},
		{"custom resources", r.customResources},
		{"server-side apply", r.apply},
		{"pages, exact revisions", r.page},
		{"watch from a revision", r.watch},
		{"delete a collection", r.deleteCollection},
		{"delete the namespace", r.deleteNamespace},
	}
}

// await polls until done returns true or an error.
func await(ctx context.Context, done func(context.Context) (bool, error)) error {
	return wait.PollUntilContextCancel(ctx, pollInterval, true, done)
}

func (r *runner) createNamespace(ctx context.Context) error {
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := r.client.CoreV1().Namespaces().Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return err
	}
	// Pods need the service account, which a controller creates.
	return await(ctx, func(ctx context.Context) (bool, error) {
		_, err := r.client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
}

// configure creates ConfigMaps and Secrets, and updates or reads them. One update of each ConfigMap has a
// conflict.
func (r *runner) configure(ctx context.Context) error {
	maps, secrets := r.client.CoreV1().ConfigMaps(namespace), r.client.CoreV1().Secrets(namespace)
	for i := range r.options.Objects {
		meta := metav1.ObjectMeta{Name: fmt.Sprintf("config-%03d", i), Labels: map[string]string{"app": "life"}}
		configMap, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"n": "0"}}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		secret := &corev1.Secret{ObjectMeta: meta, StringData: map[string]string{"n": "0"}}
		if _, err := secrets.Create(ctx, secret, metav1.CreateOptions{}); err != nil {
			return err
		}
		configMap.Data["n"] = "1"
		stale := configMap.DeepCopy()
		if _, err := maps.Update(ctx, configMap, metav1.UpdateOptions{}); err != nil {
			return err
		}
		stale.Data["n"] = "2"
		if _, err := maps.Update(ctx, stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
			return fmt.Errorf("updating a stale object did not return a conflict: %w", err)
		}
		if _, err := secrets.Get(ctx, meta.Name, metav1.GetOptions{}); err != nil {
			return err
		}
	}
	return maps.Delete(ctx, "config-000", metav1.DeleteOptions{})
}

func (r *runner) createService(ctx context.Context) error {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "app"}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{"app": "app"}, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(80)}},
	}}
	_, err := r.client.CoreV1().Services(namespace).Create(ctx, service, metav1.CreateOptions{})
	return err
}

func podTemplate(app string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: image}}},
	}
}

func (r *runner) rollOut(ctx context.Context) error {
	replicas := int32(r.options.Replicas)
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "app"}, Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Template: podTemplate("app"),
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "app"}},
	}}
	if _, err := r.client.AppsV1().Deployments(namespace).Create(ctx, deployment, metav1.CreateOptions{}); err != nil {
		return err
	}
	return r.awaitRollout(ctx)
}

func (r *runner) scale(ctx context.Context) error {
	return r.changeDeployment(ctx, func(d *appsv1.Deployment) { *d.Spec.Replicas += *d.Spec.Replicas / 2 })
}

func (r *runner) changeImage(ctx context.Context) error {
	return r.changeDeployment(ctx, func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = nextImage })
}

func (r *runner) changeDeployment(ctx context.Context, change func(*appsv1.Deployment)) error {
	deployments := r.client.AppsV1().Deployments(namespace)
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		deployment, err := deployments.Get(ctx, "app", metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(deployment)
		_, err = deployments.Update(ctx, deployment, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	return r.awaitRollout(ctx)
}

// awaitRollout waits until all pods of the Deployment have the current template and are available.
func (r *runner) awaitRollout(ctx context.Context) error {
	return await(ctx, func(ctx context.Context) (bool, error) {
		d, err := r.client.AppsV1().Deployments(namespace).Get(ctx, "app", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		wanted, s := *d.Spec.Replicas, d.Status
		return s.ObservedGeneration >= d.Generation && s.UpdatedReplicas == wanted && s.Replicas == wanted && s.AvailableReplicas == wanted, nil
	})
}

func (r *runner) runJob(ctx context.Context) error {
	completions := int32(5)
	template := podTemplate("job")
	template.Spec.RestartPolicy = corev1.RestartPolicyNever
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "job"}, Spec: batchv1.JobSpec{
		Completions: &completions, Parallelism: &completions, Template: template,
	}}
	jobs := r.client.BatchV1().Jobs(namespace)
	if _, err := jobs.Create(ctx, job, metav1.CreateOptions{}); err != nil {
		return err
	}
	return await(ctx, func(ctx context.Context) (bool, error) {
		job, err := jobs.Get(ctx, "job", metav1.GetOptions{})
		return err == nil && job.Status.Succeeded == completions, err
	})
}

// apply applies a ConfigMap with server-side apply, as two field managers. The last request conflicts with
// a field of the other manager.
func (r *runner) apply(ctx context.Context) error {
	maps := r.client.CoreV1().ConfigMaps(namespace)
	for i, manager := range []string{"one", "two", "one"} {
		declared := applycore.ConfigMap("applied", namespace).WithData(map[string]string{manager: fmt.Sprint(i)})
		if _, err := maps.Apply(ctx, declared, metav1.ApplyOptions{FieldManager: manager}); err != nil {
			return err
		}
	}
	conflicting := applycore.ConfigMap("applied", namespace).WithData(map[string]string{"one": "other"})
	if _, err := maps.Apply(ctx, conflicting, metav1.ApplyOptions{FieldManager: "two"}); !apierrors.IsConflict(err) {
		return fmt.Errorf("applying a field of another manager did not return a conflict: %w", err)
	}
	return nil
}

// page lists ConfigMaps in pages, and then with the other options that select a resource version.
func (r *runner) page(ctx context.Context) error {
	maps := r.client.CoreV1().ConfigMaps(namespace)
	options, pages := metav1.ListOptions{Limit: pageSize}, 0
	revision := ""
	for {
		page, err := maps.List(ctx, options)
		if err != nil {
			return err
		}
		pages, revision = pages+1, page.ResourceVersion
		if options.Continue = page.Continue; options.Continue == "" {
			break
		}
	}
	if pages < 2 && r.options.Objects > 2*pageSize {
		return fmt.Errorf("the API server listed %d objects in %d pages of at most %d objects",
			r.options.Objects, pages, pageSize)
	}
	for _, options := range []metav1.ListOptions{
		{ResourceVersion: "0"},
		{ResourceVersion: revision, ResourceVersionMatch: metav1.ResourceVersionMatchExact},
		{ResourceVersion: revision, ResourceVersionMatch: metav1.ResourceVersionMatchExact, Limit: pageSize},
		{ResourceVersion: revision, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan},
		{LabelSelector: "app=life", Limit: pageSize},
	} {
		if _, err := maps.List(ctx, options); err != nil {
			return err
		}
	}
	return nil
}

// watch creates a ConfigMap, and receives it by a watch that starts at the resource version of an earlier
// list.
func (r *runner) watch(ctx context.Context) error {
	maps := r.client.CoreV1().ConfigMaps(namespace)
	list, err := maps.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "watched"}}
	if _, err := maps.Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return err
	}
	watch, err := maps.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion, AllowWatchBookmarks: true})
	if err != nil {
		return err
	}
	defer watch.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case event, open := <-watch.ResultChan():
			if !open {
				return errors.New("the watch ended before it delivered the change")
			}
			if changed, ok := event.Object.(*corev1.ConfigMap); ok && changed.Name == "watched" {
				return nil
			}
		}
	}
}

func (r *runner) deleteCollection(ctx context.Context) error {
	return r.client.CoreV1().Secrets(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "app=life"})
}

func (r *runner) deleteNamespace(ctx context.Context) error {
	namespaces := r.client.CoreV1().Namespaces()
	if err := namespaces.Delete(ctx, namespace, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return await(ctx, func(ctx context.Context) (bool, error) {
		_, err := namespaces.Get(ctx, namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
}
