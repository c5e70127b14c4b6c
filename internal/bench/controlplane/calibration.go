package controlplane

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/plan"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
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
		Watches: experiment.ByScale(2000, 100), Connections: experiment.ByScale(2000, 100), Hold: experiment.SpanByScale(20*time.Second, leaseInterval),
	}
	o.Stores, o.Scheduler, o.zeroNodes = []string{clusterdir.StoreMemEtcd}, clusterdir.SchedulerDist, true
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
		for _, step := range []func(context.Context) error{c.store, c.watches, c.nodes, c.statuses, c.events, c.pods, c.alone} {
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
	// empty is the cluster without nodes, and idle with them, while nothing happens.
	empty, idle experiment.Measured
	// leaseVersion is what the API server holds for one version of a Lease, in bytes.
	leaseVersion float64
}

// nodes measures Leases and what a node takes.
func (c *calibration) nodes(ctx context.Context) (err error) {
	if err := c.nodesHeld(ctx); err != nil {
		return err
	}
	if c.idle, err = c.rest(ctx, "nodes idle", c.Hold.D); err != nil {
		return err
	}
	leases := int(countCalls(c.idle.Calls, "PUT", "leases"))
	// Each is told to the API server as well, which counts apart.
	c.Costs.APIServer.LeaseMicros = max(beyond(c.idle, c.empty, apiServer, leases)-c.Costs.APIServer.ReceiveEventMicros, 1)
	core, coordination := c.Client.CoreV1().RESTClient(), c.Client.CoordinationV1().RESTClient()
	if c.Costs.Store.NodeWire, err = wireBytes(ctx, core, "nodes", ""); err != nil {
		return err
	}
	if c.Costs.Store.LeaseWire, err = wireBytes(ctx, coordination, "leases", corev1.NamespaceNodeLease); err != nil {
		return err
	}
	c.Costs.APIServer.BaseBytes = float64(c.empty.Resident[apiServer])
	return nil
}

// makeNodes makes nodes, and waits until the cluster is quiet.
func (c *calibration) makeNodes(ctx context.Context, first, count int) error {
	if _, err := c.createNodes(ctx, first, count, bulk.DefaultNodeShape()); err != nil {
		return err
	}
	return c.AwaitQuiet(ctx)
}

// settled waits until the API server takes no less than before. With new nodes that is a
// minute; what is measured meanwhile would be taken for a cost of what is idle.
func (c *calibration) settled(ctx context.Context) error {
	const most, nearly = 9, 0.95
	last := 0.0
	for range most {
		m, err := c.rest(ctx, "settling", c.Hold.D)
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

// burst is so many calls of one kind.
type burst struct {
	what  string
	count int
	// rate is how many a second are begun; 0 is as many as go.
	rate float64
	call func(ctx context.Context, number, worker int) error
	// after is waited for, as it is part of what the calls have caused; it may be nil.
	after func(context.Context) error
}

// calls measures a burst, and says how many calls succeeded.
func (c *calibration) calls(ctx context.Context, b burst) (experiment.Measured, int, error) {
	task := c.Display.Task(b.what, b.count)
	window := c.Sampler.Begin(ctx)
	load := c.podLoad(b.count, 16, b.rate)
	load.Progress, load.Do = task.Set, b.call
	done := load.Run(ctx)
	if b.after != nil && ctx.Err() == nil {
		if err := b.after(ctx); err != nil {
			task.Interrupt()
			return experiment.Measured{}, done, fmt.Errorf("%s: %w", b.what, err)
		}
	}
	m := window.End(ctx)
	if err := c.end(ctx, load, done, task); err != nil {
		return m, done, err
	}
	if done == 0 {
		return m, done, fmt.Errorf("%s: none succeeded", b.what)
	}
	return m, done, nil
}

func (c *calibration) statuses(ctx context.Context) error {
	m, done, err := c.calls(ctx, burst{what: "statuses of nodes patched", count: c.Calls.N, call: func(ctx context.Context, number, worker int) error {
		patch := fmt.Appendf(nil, `{"status":{"conditions":[{"type":"MemoryPressure","status":"False","reason":"KubeletHasSufficientMemory","message":"%d"}]}}`, number)
		node := fmt.Sprintf("%s%06d", bulk.NodePrefix, number%c.Nodes.N)
		_, err := c.Clients.Connection(worker).CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	}})
	c.Costs.APIServer.StatusMicros = max(beyond(m, c.idle, apiServer, done), 1)
	return err
}

func (c *calibration) events(ctx context.Context) error {
	m, done, err := c.calls(ctx, burst{what: "Events created", count: c.Calls.N, call: func(ctx context.Context, number, worker int) error {
		event := &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Name: fmt.Sprintf("calibration.%d", number), Namespace: namespace},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: podName("calibration-", number)},
			Reason:         "Started", Message: strings.Repeat("x", 100), Type: corev1.EventTypeNormal,
			Source: corev1.EventSource{Component: "kubelet"}, FirstTimestamp: metav1.Now(), LastTimestamp: metav1.Now(), Count: 1,
		}
		_, err := c.Clients.Connection(worker).CoreV1().Events(namespace).Create(ctx, event, metav1.CreateOptions{})
		return err
	}})
	if err != nil {
		return err
	}
	c.Costs.APIServer.EventMicros = max(beyond(m, c.idle, apiServer, done), 1)
	c.Costs.Store.EventWire, err = wireBytes(ctx, c.Client.CoreV1().RESTClient(), "events", namespace)
	return err
}

// pods measures a pod from its creation until it is gone.
func (c *calibration) pods(ctx context.Context) error {
	const prefix = "calibration-"
	watching, stop := context.WithCancel(ctx)
	defer stop()
	s := c.watchPods(watching, prefix)
	before, err := c.holdAfter(ctx, func() error { return c.warmUp(ctx) })
	if err != nil {
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
	making := window.End(ctx)
	if c.Costs.Store.PodWire, err = wireBytes(ctx, c.Client.CoreV1().RESTClient(), "pods", namespace); err != nil {
		return err
	}
	if err := c.podsHeld(ctx, before, count); err != nil {
		return err
	}
	window = c.Sampler.Begin(ctx)
	if _, err := c.deletePods(ctx, prefix, c.Pods.N, 64); err != nil {
		return err
	}
	if err := c.awaitGone(ctx, s, 0); err != nil {
		return err
	}
	removing := window.End(ctx)
	for role, to := range map[string]*float64{apiServer: &c.Costs.APIServer.PodMicros, scheduler: &c.Costs.Scheduler.PodMicros} {
		*to = max(beyond(making, c.idle, role, count)+beyond(removing, c.idle, role, count), 1)
	}
	return nil
}
