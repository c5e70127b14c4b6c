package clusterload

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/k8s-1m/k8s-1m/internal/bulk"
	"github.com/k8s-1m/k8s-1m/internal/cluster"
	"github.com/k8s-1m/k8s-1m/internal/component"
	"github.com/k8s-1m/k8s-1m/internal/experiment"
	"github.com/k8s-1m/k8s-1m/internal/plan"
	"github.com/k8s-1m/k8s-1m/internal/usage"
)

// Calibration measures what [plan.Costs] are on this machine. It is no experiment of the
// list: `k1m plan --calibrate` runs it.
var Calibration = experiment.Experiment{
	Name:  "calibration",
	Short: "What one of each costs on this machine, for k1m plan",
	New:   func() experiment.Options { return NewCalibration() },
}

// Calibrated has the costs once it was run.
type Calibrated struct {
	clusters
	Pods, Calls, Watches, Connections experiment.Count
	Hold                              experiment.Span

	Costs plan.Costs
}

// NewCalibration is one with counts that follow from the scale.
func NewCalibration() *Calibrated {
	o := &Calibrated{
		clusters: defaultClusters(experiment.ByScale(2000, 200)), Pods: experiment.ByScale(2000, 100), Calls: experiment.ByScale(3000, 200),
		Watches: experiment.ByScale(2000, 100), Connections: experiment.ByScale(500, 50), Hold: experiment.SpanByScale(20*time.Second, leaseInterval),
	}
	o.Stores, o.Scheduler, o.zeroNodes = []string{cluster.StoreMemEtcd}, cluster.SchedulerDist, true
	return o
}

// AddFlags binds the options to flags, by which they follow from the scale.
func (o *Calibrated) AddFlags(fs *pflag.FlagSet) {
	o.clusters.AddFlags(fs)
	fs.Var(&o.Pods, "pods", "pods that come and go")
	fs.Var(&o.Calls, "calls", "calls of each kind")
	fs.Var(&o.Watches, "watches", "watches that are opened")
	fs.Var(&o.Connections, "connections", "connections that are opened")
	fs.Var(&o.Hold, "hold", "how long what is idle is measured")
}

// Validate reports the first option that cannot be.
func (o *Calibrated) Validate() error { return o.clusters.Validate() }

// Run measures.
func (o *Calibrated) Run(ctx context.Context, run *experiment.Run) error {
	if run.UsesExisting() {
		return usage.Errorf("--name %s: costs are measured in a cluster of their own; leave --name out", run.Dir.Name())
	}
	return o.each(ctx, run, func(ctx context.Context, t *turn) error {
		if err := t.prepareEmpty(ctx); err != nil {
			return err
		}
		// What cannot be had here: many API servers, and replicas on machines of their own.
		o.Costs = plan.DefaultCosts()
		m := run.Result.Machine
		o.Costs.Where = fmt.Sprintf("%d cores of %s, %s, %d nodes and %d pods", m.Cores, m.Processor, run.Result.Time.Format(time.DateOnly), o.Nodes.N, o.Pods.N)
		c := &calibration{Calibrated: o, turn: t}
		for _, step := range []func(context.Context) error{c.nodes, c.statuses, c.events, c.pods, c.store, c.deliveries, c.watches} {
			if err := step(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// calibration is one under way. A cost that is less than noise is nearly nothing, and not
// less than that.
type calibration struct {
	*Calibrated
	*turn
	// empty is the cluster without nodes, and idle with them, while nothing happens; then
	// the store's pipeline takes so much of a core.
	empty, idle  experiment.Measured
	pipelineIdle float64
	// live is what lived in the API server before.
	live float64
}

// nodes measures Leases and what a node takes.
func (c *calibration) nodes(ctx context.Context) (err error) {
	if c.empty, err = c.rest(ctx, "empty cluster", c.Hold.D); err != nil {
		return err
	}
	if _, err := c.moreLive(ctx); err != nil {
		return err
	}
	if _, err := c.createNodes(ctx, 0, c.Nodes.N, bulk.DefaultNodeShape()); err != nil {
		return err
	}
	if err := c.AwaitQuiet(ctx); err != nil {
		return err
	}
	if err := c.settled(ctx); err != nil {
		return err
	}
	before, err := c.pipelineCPU()
	if err != nil {
		return err
	}
	if c.idle, err = c.rest(ctx, "nodes idle", c.Hold.D); err != nil {
		return err
	}
	after, err := c.pipelineCPU()
	if err != nil {
		return err
	}
	c.pipelineIdle = (after - before) / c.idle.Seconds
	leases := int(countCalls(c.idle.Calls, "PUT", "leases"))
	c.Costs.APIServer.LeaseMicros = max(beyond(c.idle, c.empty, apiServer, leases), 1)
	c.Costs.Store.UpdateMicros = max(beyond(c.idle, c.empty, component.Store, leases), 1)
	core, coordination := c.Client.CoreV1().RESTClient(), c.Client.CoordinationV1().RESTClient()
	if c.Costs.Store.NodeWire, err = wireBytes(ctx, core, "nodes", ""); err != nil {
		return err
	}
	if c.Costs.Store.LeaseWire, err = wireBytes(ctx, coordination, "leases", corev1.NamespaceNodeLease); err != nil {
		return err
	}
	more, err := c.moreLive(ctx)
	if err != nil {
		return err
	}
	// A node comes with its Lease; what both take is shared by their sizes.
	ofNode := c.Costs.Store.NodeWire / (c.Costs.Store.NodeWire + c.Costs.Store.LeaseWire)
	share := func(bytes float64) (node, lease float64) {
		both := max(bytes/float64(c.Nodes.N), 1)
		return both * ofNode, both * (1 - ofNode)
	}
	c.Costs.APIServer.BaseBytes = float64(c.empty.Resident[apiServer])
	c.Costs.APIServer.NodeBytes, c.Costs.APIServer.LeaseBytes = share(more)
	c.Costs.Store.NodeBytes, c.Costs.Store.LeaseBytes = share(grown(c.idle, c.empty, component.Store))
	c.Costs.Scheduler.NodeBytes = max(grown(c.idle, c.empty, scheduler)/float64(c.Nodes.N), 1)
	return nil
}

// settled waits until the API server takes no less than before. With new nodes that is a
// minute; what is measured meanwhile would be taken for a cost of what is idle.
func (c *calibration) settled(ctx context.Context) error {
	const most, nearly = 9, 0.95
	last := 0.0
	for range most {
		m, err := c.rest(ctx, "nodes settle", c.Hold.D)
		if err != nil {
			return err
		}
		now := m.Cores(apiServer)
		if last > 0 && now > nearly*last {
			return nil
		}
		last = now
	}
	return nil
}

// wireBytes is what an object takes on the wire, on average over some.
func wireBytes(ctx context.Context, client rest.Interface, resource, namespace string) (float64, error) {
	const some = 100
	data, err := client.Get().NamespaceIfScoped(namespace, namespace != "").Resource(resource).Param("limit", fmt.Sprint(some)).
		SetHeader("Accept", runtime.ContentTypeProtobuf).Do(ctx).Raw()
	if err != nil {
		return 0, fmt.Errorf("reading %s: %w", resource, err)
	}
	return float64(len(data)) / some, nil
}

// calls measures what so many calls take beyond idle nodes.
func (c *calibration) calls(ctx context.Context, what string, call func(ctx context.Context, number, worker int) error) (experiment.Measured, int, error) {
	task := c.Display.Task(what, c.Calls.N)
	window := c.Sampler.Begin(ctx)
	load := c.podLoad(c.Calls.N, 16, 0)
	load.Progress, load.Do = task.Set, call
	done := load.Run(ctx)
	m := window.End(ctx)
	if err := c.end(ctx, load, done, task); err != nil {
		return m, done, err
	}
	if done == 0 {
		return m, done, fmt.Errorf("%s: none succeeded", what)
	}
	return m, done, nil
}

func (c *calibration) statuses(ctx context.Context) error {
	m, done, err := c.calls(ctx, "statuses of nodes patched", func(ctx context.Context, number, worker int) error {
		patch := fmt.Appendf(nil, `{"status":{"conditions":[{"type":"MemoryPressure","status":"False","reason":"KubeletHasSufficientMemory","message":"%d"}]}}`, number)
		node := fmt.Sprintf("%s%06d", bulk.NodePrefix, number%c.Nodes.N)
		_, err := c.Clients.Connection(worker).CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	})
	c.Costs.APIServer.StatusMicros = max(beyond(m, c.idle, apiServer, done), 1)
	return err
}

func (c *calibration) events(ctx context.Context) error {
	m, done, err := c.calls(ctx, "Events created", func(ctx context.Context, number, worker int) error {
		event := &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Name: fmt.Sprintf("calibration.%d", number), Namespace: namespace},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: podName("calibration-", number)},
			Reason:         "Started", Message: strings.Repeat("x", 100), Type: corev1.EventTypeNormal,
			Source: corev1.EventSource{Component: "kubelet"}, FirstTimestamp: metav1.Now(), LastTimestamp: metav1.Now(), Count: 1,
		}
		_, err := c.Clients.Connection(worker).CoreV1().Events(namespace).Create(ctx, event, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	c.Costs.APIServer.EventMicros = max(beyond(m, c.idle, apiServer, done), 1)
	wire, err := wireBytes(ctx, c.Client.CoreV1().RESTClient(), "events", namespace)
	c.Costs.Store.EventWire = wire
	// In the store they take beyond that what a node and its Lease do.
	c.Costs.Store.EventBytes = wire + max((c.Costs.Store.NodeBytes+c.Costs.Store.LeaseBytes-c.Costs.Store.NodeWire-c.Costs.Store.LeaseWire)/2, 0)
	return err
}

// pods measures a pod from its creation until it is gone.
func (c *calibration) pods(ctx context.Context) error {
	const prefix = "calibration-"
	watching, stop := context.WithCancel(ctx)
	defer stop()
	s := c.watchPods(watching, prefix)
	if err := c.AwaitQuiet(ctx); err != nil {
		return err
	}
	before := c.Sampler.Begin(ctx).End(ctx)
	if _, err := c.moreLive(ctx); err != nil {
		return err
	}
	window := c.Sampler.Begin(ctx)
	created, err := c.createPods(ctx, s, prefix, c.Pods.N, 64, 0)
	if err != nil {
		return err
	}
	count := int(created.Latencies.Count())
	if err := c.awaitRunning(ctx, s, count); err != nil {
		return err
	}
	running := c.Sampler.Begin(ctx).End(ctx)
	more, err := c.moreLive(ctx)
	if err != nil {
		return err
	}
	c.Costs.APIServer.PodBytes = max(more/float64(count), 1)
	if c.Costs.Store.PodWire, err = wireBytes(ctx, c.Client.CoreV1().RESTClient(), "pods", namespace); err != nil {
		return err
	}
	if _, err := c.deletePods(ctx, prefix, c.Pods.N, 64); err != nil {
		return err
	}
	if err := c.awaitGone(ctx, s, 0); err != nil {
		return err
	}
	m := window.End(ctx)
	c.Costs.APIServer.PodMicros = max(beyond(m, c.idle, apiServer, count), 1)
	c.Costs.Scheduler.PodMicros = max(beyond(m, c.idle, scheduler, count), 1)
	for role, to := range map[string]*float64{component.Store: &c.Costs.Store.PodBytes, scheduler: &c.Costs.Scheduler.PodBytes} {
		*to = max(grown(running, before, role)/float64(count), 1)
	}
	return nil
}

// watches measures the memory of watches and connections that are idle.
func (c *calibration) watches(ctx context.Context) error {
	opened := func(what string, count int, open func(context.Context, int) (io.Closer, error)) (float64, error) {
		task := c.Display.Task(what, count)
		if _, err := c.moreLive(ctx); err != nil {
			return 0, err
		}
		for i := range count {
			closer, err := open(ctx, i)
			if err != nil {
				task.Interrupt()
				return 0, fmt.Errorf("%s: %w", what, err)
			}
			defer closer.Close()
			task.Set(i + 1)
		}
		task.Done(fmt.Sprint(count))
		more, err := c.moreLive(ctx)
		return max(more/float64(count), 1), err
	}
	clients, err := c.connect(c.Watches.N, streamsOfConnection, nil)
	if err != nil {
		return err
	}
	// As a kubelet's of a ConfigMap that a pod refers to.
	options := metav1.ListOptions{Watch: true, FieldSelector: "metadata.name=calibration"}
	if c.Costs.APIServer.WatchBytes, err = opened("watches opened", c.Watches.N, func(ctx context.Context, i int) (io.Closer, error) {
		return openStream(ctx, clients.Connection(i), "configmaps", options)
	}); err != nil {
		return err
	}
	lone, err := c.connect(c.Connections.N, 1, nil)
	if err != nil {
		return err
	}
	c.Costs.APIServer.ConnectionBytes, err = opened("connections opened", c.Connections.N, func(ctx context.Context, i int) (io.Closer, error) {
		_, err := lone.Connection(i).CoreV1().ConfigMaps(namespace).Get(ctx, "calibration", metav1.GetOptions{})
		return io.NopCloser(nil), err
	})
	return err
}

// moreLive is how much memory the API server needs more than when this was last asked: twice
// what lives, as a collector lets as much garbage come up.
func (c *calibration) moreLive(ctx context.Context) (float64, error) {
	// A collection at least is to see what came last.
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(settle):
	}
	live, err := c.Sampler.Live(ctx, apiServer)
	more := live - c.live
	c.live = live
	return 2 * more, err
}

// settle is how long an API server with nodes takes to collect its garbage once or twice.
const settle = 10 * time.Second

// grown is how much more memory a role has, in bytes.
func grown(after, before experiment.Measured, role string) float64 {
	return float64(after.Resident[role] - before.Resident[role])
}
