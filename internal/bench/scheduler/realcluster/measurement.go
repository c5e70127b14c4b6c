package realcluster

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/kube"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
)

const (
	// Number of warm-up pods. They are not measured, because they include one-time work such as
	// creating the namespace and opening connections.
	warmUpPods   = 20
	warmUpPrefix = "warm-"

	poll = 50 * time.Millisecond
	// Page size of node lists.
	nodePage = 10_000
)

var onePod = resource.MustParse("1")

// measurement is one measurement of a scheduler.
type measurement struct {
	options Options
	config  clusterdir.Config
	pods    *bulk.Pods
	display progress.Display
	clients *bulk.Clients
	client  kubernetes.Interface
	usage   usageOf
	binds   *binds
}

func newTurn(dir clusterdir.Dir, config clusterdir.Config, o Options, pods *bulk.Pods, display progress.Display) (*measurement, error) {
	rest, err := kube.Config(dir.Kubeconfig(pki.SuperAdmin.File))
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return nil, fmt.Errorf("connecting to the API server: %w", err)
	}
	clients, err := bulk.NewClients(rest, component.APIServerURLs(config), bulk.DefaultOptions("").Connections)
	if err != nil {
		return nil, err
	}
	return &measurement{
		options: o, config: config, pods: pods, display: display, clients: clients, client: client,
		usage: usageOf{dir, config}, binds: newBinds(bulk.PodPrefix, time.Now),
	}, nil
}

// measure creates the pods while the scheduler binds them.
func (t *measurement) measure(ctx context.Context) (Scheduler, error) {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	t.watch(watching)
	if err := t.warmUp(ctx); err != nil {
		return Scheduler{}, err
	}
	before, err := t.usage.read()
	if err != nil {
		return Scheduler{}, err
	}
	started := time.Now()
	created := make(chan error, 1)
	var creation bulk.Summary
	go func() {
		var err error
		creation, err = t.create(watching, bulk.PodPrefix, t.options.Pods)
		created <- err
	}()
	if err := t.awaitBound(ctx, created); err != nil {
		return Scheduler{}, err
	}
	after, err := t.usage.read()
	if err != nil {
		return Scheduler{}, err
	}
	nodes, err := t.nodes(ctx)
	if err != nil {
		return Scheduler{}, err
	}
	return t.summarize(creation, started, before, after, nodes), nil
}

// watch records binds from a watch of the API server.
func (t *measurement) watch(ctx context.Context) {
	source := cache.ToListWatcherWithWatchListSemantics(
		cache.NewListWatchFromClient(t.client.CoreV1().RESTClient(), "pods", t.options.Shape.Namespace, fields.Everything()),
		t.client)
	reflector := cache.NewReflectorWithOptions(source, &corev1.Pod{}, t.binds, cache.ReflectorOptions{})
	go reflector.RunWithContext(ctx)
}

func (t *measurement) warmUp(ctx context.Context) error {
	task := t.display.Task("warming up", 0)
	_, err := t.create(ctx, warmUpPrefix, warmUpPods)
	if err == nil {
		err = bulk.AwaitPodsRunning(ctx, t.clients, t.options.Shape.Namespace, t.bulkOptions(warmUpPrefix, warmUpPods), t.options.Timeout)
	}
	if err == nil {
		err = awaitQuiet(ctx, t.usage.controlPlane)
	}
	if err != nil {
		progress.Fail(ctx, task, err.Error())
		return fmt.Errorf("warming up: %w", err)
	}
	task.Done("done")
	return nil
}

func (t *measurement) bulkOptions(prefix string, count int) bulk.Options {
	o := bulk.DefaultOptions(prefix)
	o.Range.Count = count
	o.Progress = func(int) {}
	return o
}

func (t *measurement) create(ctx context.Context, prefix string, count int) (bulk.Summary, error) {
	summary, err := bulk.CreatePods(ctx, t.clients, t.pods, t.options.Shape.Namespace, t.bulkOptions(prefix, count))
	if err != nil {
		return summary, fmt.Errorf("creating pods: %w", err)
	}
	return summary, nil
}

// awaitBound waits until all pods have a node, or until no progress is made for the timeout.
func (t *measurement) awaitBound(ctx context.Context, created <-chan error) error {
	task := t.display.Task("pods bound by "+t.config.Settings.Scheduler, t.options.Pods)
	progressed, before := time.Now(), -1
	for {
		bound, _ := t.binds.bound()
		task.Set(bound)
		if bound != before {
			progressed, before = time.Now(), bound
		}
		stalled := created == nil && time.Since(progressed) > t.options.Timeout
		if created == nil && bound == t.options.Pods || stalled {
			task.Done(fmt.Sprintf("%d of %d", bound, t.options.Pods))
			return nil
		}
		select {
		case <-ctx.Done():
			task.Interrupt()
			return ctx.Err()
		case err := <-created:
			if err != nil {
				progress.Fail(ctx, task, fmt.Sprintf("%d bound", bound))
				return err
			}
			created = nil
		case <-time.After(poll):
		}
	}
}

func (t *measurement) nodes(ctx context.Context) ([]corev1.Node, error) {
	var all []corev1.Node
	options := metav1.ListOptions{Limit: nodePage}
	for {
		page, err := t.client.CoreV1().Nodes().List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("reading the nodes: %w", err)
		}
		all = append(all, page.Items...)
		if options.Continue = page.Continue; options.Continue == "" {
			return all, nil
		}
	}
}
