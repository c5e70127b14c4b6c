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

// Calibration measures the [plan.Costs] of this machine. It is not in the list of experiments, but run by
// `k1m plan --calibrate`.
var Calibration = experiment.Experiment{
	Name:  "calibration",
	Short: "Measure the costs of objects and calls on this machine, for k1m plan",
	New:   func() experiment.Options { return NewCalibration() },
}

// CalibrationOptions are the options of the calibration. Run sets Costs to the measured costs.
type CalibrationOptions struct {
	clusters
	Pods, Calls, Watches, Connections experiment.Count
	Hold                              experiment.Span

	Costs plan.Costs
}

// NewCalibration returns the default options. Their counts follow from the scale.
func NewCalibration() *CalibrationOptions {
	o := &CalibrationOptions{
		clusters: defaultClusters(experiment.ByScale(2000, 200)), Pods: experiment.ByScale(2000, 100), Calls: experiment.ByScale(3000, 200),
		Watches: experiment.ByScale(2000, 100), Connections: experiment.ByScale(2000, 100), Hold: experiment.SpanByScale(20*time.Second, leaseInterval),
	}
	o.Stores, o.Scheduler, o.zeroNodes, o.choosesNodes = []string{clusterdir.StoreMemEtcd}, clusterdir.SchedulerDist, true, true
	return o
}

// AddFlags binds the options to flags. Options whose flags are not set follow from the scale.
func (o *CalibrationOptions) AddFlags(fs *pflag.FlagSet) {
	o.clusters.AddFlags(fs)
	fs.Var(&o.Pods, "pods", "pods to create and delete")
	fs.Var(&o.Calls, "calls", "calls of each kind")
	fs.Var(&o.Watches, "watches", "watches to open")
	fs.Var(&o.Connections, "connections", "connections to open")
	fs.Var(&o.Hold, "hold", "duration of each idle measurement")
}

// Validate returns the first invalid option as a usage error.
func (o *CalibrationOptions) Validate() error { return o.clusters.Validate() }

// Run measures the costs in a cluster of its own.
func (o *CalibrationOptions) Run(ctx context.Context, run *experiment.Run) error {
	if run.UsesExisting() {
		return usage.Errorf("--name %s: the calibration creates its own cluster, so it cannot use an existing cluster; omit --name", run.Dir.Name())
	}
	return o.each(ctx, run, func(ctx context.Context, t *storeRun) error {
		if err := t.prepareEmpty(ctx); err != nil {
			return err
		}
		// The costs of many API servers, and of scheduler replicas on separate machines, cannot be
		// measured on one machine. They keep their default values.
		o.Costs = plan.DefaultCosts()
		m := run.Result.Machine
		o.Costs.Where = fmt.Sprintf("%d cores of %s, %s, %d nodes and %d pods", m.Cores, m.Processor, run.Result.Time.Format(time.DateOnly), o.Nodes.N, o.Pods.N)
		c := &calibration{CalibrationOptions: o, storeRun: t}
		for _, step := range []func(context.Context) error{c.store, c.watches, c.nodes, c.measureStatuses, c.events, c.pods, c.storeAlone} {
			if err := step(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// calibration is a running calibration. A cost that is too small to be measured is reported as a small
// positive value, even if the measurement was negative.
type calibration struct {
	*CalibrationOptions
	*storeRun
	// empty is the usage of the idle cluster without nodes. idle is the usage with idle nodes.
	empty, idle experiment.Measured
	// leaseVersion is the memory of the API server for one version of a Lease, in bytes.
	leaseVersion float64
}

// nodes creates nodes, and measures their memory, the cost of their Lease renewals, and the sizes of nodes
// and Leases.
func (c *calibration) nodes(ctx context.Context) (err error) {
	if err := c.nodesMemory(ctx); err != nil {
		return err
	}
	if c.idle, err = c.measureIdle(ctx, "nodes idle", c.Hold.D); err != nil {
		return err
	}
	leases := int(countCalls(c.idle.Calls, "PUT", "leases"))
	// For each renewal the API server also receives a watch event from the store. That cost is counted
	// separately.
	c.Costs.APIServer.LeaseMicros = max(extraCPU(c.idle, c.empty, apiServer, leases)-c.Costs.APIServer.ReceiveWatchEventMicros, 1)
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

// makeNodes creates nodes, and waits until the cluster is idle.
func (c *calibration) makeNodes(ctx context.Context, first, count int) error {
	if _, err := c.createNodes(ctx, first, count, bulk.DefaultNodeShape()); err != nil {
		return err
	}
	return c.AwaitQuiet(ctx)
}

// awaitSettled waits until the CPU usage of the API server no longer falls, which takes about a minute
// after nodes were created. Otherwise work that remains from the creation would be measured as a cost of
// idle nodes.
func (c *calibration) awaitSettled(ctx context.Context) error {
	const maxRounds, stableRatio = 9, 0.95
	last := 0.0
	for range maxRounds {
		m, err := c.measureIdle(ctx, "settling", c.Hold.D)
		if err != nil {
			return err
		}
		now := m.Cores(apiServer)
		if last > 0 && now > stableRatio*last {
			return nil
		}
		last = now
	}
	return nil
}

// wireBytes returns the average protobuf size of the objects of a resource. There must be at least 100
// objects.
func wireBytes(ctx context.Context, client rest.Interface, resource, namespace string) (float64, error) {
	const pageSize = 100
	data, err := client.Get().NamespaceIfScoped(namespace, namespace != "").Resource(resource).Param("limit", fmt.Sprint(pageSize)).
		SetHeader("Accept", runtime.ContentTypeProtobuf).Do(ctx).Raw()
	if err != nil {
		return 0, fmt.Errorf("reading %s: %w", resource, err)
	}
	return float64(len(data)) / pageSize, nil
}

// burst is a number of calls of one kind.
type burst struct {
	what  string // shown on the display
	count int
	// rate is the number of calls per second; 0 means as fast as possible.
	rate float64
	call func(ctx context.Context, number, worker int) error
	// after, if not nil, waits until the effects of the calls have taken place. It is part of the
	// measurement.
	after func(context.Context) error
}

// measureCalls measures a burst. It returns the measurement and the number of calls that succeeded.
func (c *calibration) measureCalls(ctx context.Context, b burst) (experiment.Measured, int, error) {
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
	if err := c.finishLoad(ctx, load, done, task); err != nil {
		return m, done, err
	}
	if done == 0 {
		return m, done, fmt.Errorf("%s: all calls failed", b.what)
	}
	return m, done, nil
}

// measureStatuses measures the cost of patching the status of a node.
func (c *calibration) measureStatuses(ctx context.Context) error {
	m, done, err := c.measureCalls(ctx, burst{what: "node statuses patched", count: c.Calls.N, call: func(ctx context.Context, number, worker int) error {
		patch := fmt.Appendf(nil, `{"status":{"conditions":[{"type":"MemoryPressure","status":"False","reason":"KubeletHasSufficientMemory","message":"%d"}]}}`, number)
		node := fmt.Sprintf("%s%06d", bulk.NodePrefix, number%c.Nodes.N)
		_, err := c.Clients.Connection(worker).CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	}})
	c.Costs.APIServer.StatusMicros = max(extraCPU(m, c.idle, apiServer, done), 1)
	return err
}

// events measures the cost of creating an Event, and the size of an Event.
func (c *calibration) events(ctx context.Context) error {
	m, done, err := c.measureCalls(ctx, burst{what: "Events created", count: c.Calls.N, call: func(ctx context.Context, number, worker int) error {
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
	c.Costs.APIServer.CreateEventMicros = max(extraCPU(m, c.idle, apiServer, done), 1)
	c.Costs.Store.EventWire, err = wireBytes(ctx, c.Client.CoreV1().RESTClient(), "events", namespace)
	return err
}

// pods measures the costs of a pod from its creation until it is deleted, and its size.
func (c *calibration) pods(ctx context.Context) error {
	const prefix = "calibration-"
	watching, stop := context.WithCancel(ctx)
	defer stop()
	s := c.watchPods(watching, prefix)
	before, err := c.memoryAfter(ctx, func() error { return c.warmUp(ctx) })
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
	creation := window.End(ctx)
	if c.Costs.Store.PodWire, err = wireBytes(ctx, c.Client.CoreV1().RESTClient(), "pods", namespace); err != nil {
		return err
	}
	if err := c.podsMemory(ctx, before, count); err != nil {
		return err
	}
	window = c.Sampler.Begin(ctx)
	if _, err := c.deletePods(ctx, prefix, c.Pods.N, 64); err != nil {
		return err
	}
	if err := c.awaitGone(ctx, s, 0); err != nil {
		return err
	}
	deletion := window.End(ctx)
	for role, micros := range map[string]*float64{apiServer: &c.Costs.APIServer.PodMicros, scheduler: &c.Costs.Scheduler.PodMicros} {
		*micros = max(extraCPU(creation, c.idle, role, count)+extraCPU(deletion, c.idle, role, count), 1)
	}
	return nil
}
