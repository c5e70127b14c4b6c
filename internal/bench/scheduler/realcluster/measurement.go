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
	// warmUpPods is the number of pods that are created before the measurement. They cause one-time work,
	// such as creating the namespace and opening connections.
	warmUpPods   = 20
	warmUpPrefix = "warm-"

	pollInterval = 50 * time.Millisecond
	// nodePageSize is the page size of node lists.
	nodePageSize = 10_000
)

var onePod = resource.MustParse("1")

// measurement is one measurement of a scheduler in a cluster.
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

func newMeasurement(dir clusterdir.Dir, config clusterdir.Config, o Options, pods *bulk.Pods, display progress.Display) (*measurement, error) {
	rest, err := kube.Config(dir.Kubeconfig(pki.SuperAdmin.File))
	if err != nil {
		return nil, err
	}
	urls := component.ClientURLs(config)
	rest.Host = urls[0]
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", urls[0], err)
	}
	clients, err := bulk.NewClients(rest, urls, bulk.DefaultOptions("").Connections)
	if err != nil {
		return nil, err
	}
	return &measurement{
		options: o, config: config, pods: pods, display: display, clients: clients, client: client,
		usage: usageOf{dir, config}, binds: newBinds(bulk.PodPrefix, time.Now),
	}, nil
}

// measure creates the pods, waits until the scheduler has bound them, and returns the result.
func (m *measurement) measure(ctx context.Context) (Scheduler, error) {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	m.watch(watching)
	if err := m.warmUp(ctx); err != nil {
		return Scheduler{}, err
	}
	before, err := m.usage.read()
	if err != nil {
		return Scheduler{}, err
	}
	started := time.Now()
	created := make(chan error, 1)
	var creation bulk.Summary
	go func() {
		var err error
		creation, err = m.create(watching, bulk.PodPrefix, m.options.Pods)
		created <- err
	}()
	if err := m.awaitBound(ctx, created); err != nil {
		return Scheduler{}, err
	}
	after, err := m.usage.read()
	if err != nil {
		return Scheduler{}, err
	}
	nodes, err := m.nodes(ctx)
	if err != nil {
		return Scheduler{}, err
	}
	return m.summarize(creation, started, before, after, nodes), nil
}

// watch starts a watch of the pods, which records their binds.
func (m *measurement) watch(ctx context.Context) {
	source := cache.ToListWatcherWithWatchListSemantics(
		cache.NewListWatchFromClient(m.client.CoreV1().RESTClient(), "pods", m.options.Shape.Namespace, fields.Everything()),
		m.client)
	reflector := cache.NewReflectorWithOptions(source, &corev1.Pod{}, m.binds, cache.ReflectorOptions{})
	go reflector.RunWithContext(ctx)
}

// warmUp creates the warm-up pods, and waits until they run and the control plane is idle.
func (m *measurement) warmUp(ctx context.Context) error {
	task := m.display.Task("warming up", 0)
	_, err := m.create(ctx, warmUpPrefix, warmUpPods)
	if err == nil {
		err = bulk.AwaitPodsRunning(ctx, m.clients, m.options.Shape.Namespace, m.bulkOptions(warmUpPrefix, warmUpPods), m.options.Timeout)
	}
	if err == nil {
		err = awaitQuiet(ctx, m.usage.controlPlane)
	}
	if err != nil {
		progress.Fail(ctx, task, err.Error())
		return fmt.Errorf("warming up: %w", err)
	}
	task.Done("done")
	return nil
}

func (m *measurement) bulkOptions(prefix string, count int) bulk.Options {
	o := bulk.DefaultOptions(prefix)
	o.Range.Count = count
	o.Progress = func(int) {}
	return o
}

func (m *measurement) create(ctx context.Context, prefix string, count int) (bulk.Summary, error) {
	summary, err := bulk.CreatePods(ctx, m.clients, m.pods, m.options.Shape.Namespace, m.bulkOptions(prefix, count))
	if err != nil {
		return summary, fmt.Errorf("creating pods: %w", err)
	}
	return summary, nil
}

// awaitBound waits until all pods have a node, or until no further pod got a node for the timeout. created
// receives the error of the creation of the pods when that ends.
func (m *measurement) awaitBound(ctx context.Context, created <-chan error) error {
	task := m.display.Task("pods bound by "+m.config.Settings.Scheduler, m.options.Pods)
	progressed, before := time.Now(), -1
	for {
		bound, _ := m.binds.bound()
		task.Set(bound)
		if bound != before {
			progressed, before = time.Now(), bound
		}
		stalled := created == nil && time.Since(progressed) > m.options.Timeout
		if created == nil && bound == m.options.Pods || stalled {
			task.Done(fmt.Sprintf("%d of %d", bound, m.options.Pods))
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
		case <-time.After(pollInterval):
		}
	}
}

// nodes lists all nodes.
func (m *measurement) nodes(ctx context.Context) ([]corev1.Node, error) {
	var all []corev1.Node
	options := metav1.ListOptions{Limit: nodePageSize}
	for {
		page, err := m.client.CoreV1().Nodes().List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("reading the nodes: %w", err)
		}
		all = append(all, page.Items...)
		if options.Continue = page.Continue; options.Continue == "" {
			return all, nil
		}
	}
}
