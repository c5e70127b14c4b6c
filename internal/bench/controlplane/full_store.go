package controlplane

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

const (
	// fullStoreProfile is the profile of the cluster, because nodes without one would renew their Leases through the API
	// server.
	fullStoreProfile = "10k"
	fillWorkers      = 64
	storeDialTimeout = 10 * time.Second
	// probeWorkers is the largest number of puts of the store's probe in flight.
	probeWorkers = 8
)

var fullStore = experiment.Experiment{
	Name:  "full-store",
	Short: "Fill a cluster in steps up to a million objects, and measure whether it becomes slower",
	Long: `Fill a cluster of --nodes nodes (10,000, simulated by node-sim) in --steps steps with --pods pods and with
ConfigMaps, up to --objects objects (a million) in the store. Alibaba reported a cluster of this size in which
requests took up to 10 s before etcd and the API server were changed.

At each step the table shows the rate and the latency with which the ConfigMaps of the step were created, and
then, for --duration each:
  - puts of 1 KiB directly into the store, --puts a second
  - pods that are created, scheduled and run, --startups of them
  - lists of the pods of one node, as kubectl describe node sends them
  - pages of 500 nodes

The pods that fill the cluster are created with a node, so no scheduler works on them.`,
	Example: `  k1m bench full-store
  k1m bench full-store --stores mem_etcd,etcd --pods 50000
  k1m bench full-store --scale 0.1`,
	New: func() experiment.Options {
		o := &fullStoreOptions{
			clusters: defaultClusters(experiment.ByScale(10_000, 20)), Pods: experiment.ByScale(200_000, 80), Objects: experiment.ByScale(1_000_000, 400),
			Steps: 4, Bytes: 1024, Puts: 200, Startups: experiment.ByScale(100, 10), Duration: experiment.SpanByScale(15*time.Second, 3*time.Second),
		}
		o.Stores, o.NodeSimulator = []string{clusterdir.StoreMemEtcd}, clusterdir.SimulatorNodeSim
		o.changeSettings = o.apply
		return o
	},
}

type fullStoreOptions struct {
	clusters
	Pods, Objects, Startups experiment.Count
	Steps, Bytes            int
	Puts                    float64
	Duration                experiment.Span
}

// AddFlags binds the options to flags.
func (o *fullStoreOptions) AddFlags(fs *pflag.FlagSet) {
	o.clusters.AddFlags(fs)
	fs.Var(&o.Pods, "pods", o.Pods.Usage("number of pods in the full cluster"))
	fs.Var(&o.Objects, "objects", o.Objects.Usage("number of keys in the full store"))
	fs.IntVar(&o.Steps, "steps", o.Steps, "number of equal steps in which the cluster is filled")
	fs.IntVar(&o.Bytes, "bytes", o.Bytes, "data of a ConfigMap in bytes")
	fs.Float64Var(&o.Puts, "puts", o.Puts, "puts per second directly into the store")
	fs.Var(&o.Startups, "startups", o.Startups.Usage("number of pods whose startup is measured at each step"))
	fs.Var(&o.Duration, "duration", o.Duration.Usage("duration of each measurement at a step"))
}

// Validate returns the first invalid option as a usage error.
func (o *fullStoreOptions) Validate() error {
	switch {
	case o.Steps < 1 || o.Steps > 100:
		return usage.Errorf("--steps %d: choose 1 to 100", o.Steps)
	case o.Bytes < 1 || o.Bytes > corev1.MaxSecretSize:
		return usage.Errorf("--bytes %d: choose 1 to %d", o.Bytes, corev1.MaxSecretSize)
	case o.Puts <= 0:
		return usage.Errorf("--puts %g: must be more than 0", o.Puts)
	}
	return errors.Join(o.fit(o.Pods), o.clusters.Validate())
}

// apply changes the settings of a cluster.
func (o *fullStoreOptions) apply(settings *clusterdir.Settings) {
	if o.NodeSimulator == clusterdir.SimulatorNodeSim {
		settings.Profile = fullStoreProfile
	}
}

// Run implements experiment.Options.
func (o *fullStoreOptions) Run(ctx context.Context, run *experiment.Run) error {
	if run.UsesExisting() {
		return usage.Errorf("--name %s: full-store fills a store with a million objects, so it cannot use an existing cluster; omit --name", run.Dir.Name())
	}
	table := run.Result.Table("A store that is filled", "store", "objects", "pods", "ConfigMaps created, /s", "p50, ms", "p99, ms", "store's CPU for one, µs",
		"put: p50, ms", "p99, ms", "pod startup: p50, ms", "p99, ms", "pods of a node: p50, ms", "p99, ms", "page of nodes: p50, ms", "p99, ms",
		"memory: store, MiB", "kube-apiserver, MiB", "kube-controller-manager, MiB")
	published := run.Result.Table("Published by Alibaba (2019: 10,000 nodes, 200,000 pods, 1,000,000 objects), and this run", "store", "published", "this run")
	return o.each(ctx, run, func(ctx context.Context, t *storeRun) error {
		f := &filling{storeRun: t, options: o, table: table}
		defer f.publish(published)
		return f.run(ctx)
	})
}

// filling is a cluster that is filled.
type filling struct {
	*storeRun
	options *fullStoreOptions
	table   *experiment.Table
	client  *clientv3.Client
	// pods and configMaps are how many exist.
	pods, configMaps int
	steps            []storeStep
}

// storeStep is what was measured at a step.
type storeStep struct {
	objects, pods int
	created       *experiment.Latencies // of ConfigMaps
	perSecond     float64               // ConfigMaps created
	micros        float64               // the store's CPU time for one of them
	// puts, startups, podsOfANode and pageOfNodes are the latencies of the probes.
	puts, startups, podsOfANode, pageOfNodes *experiment.Latencies
	usage                                    experiment.Usage
}

// memory returns the memory of a role in MiB.
func (s storeStep) memory(role string) float64 { return float64(s.usage[role].Resident) / mebibyte }

// run fills the cluster in steps, and measures it after each.
func (f *filling) run(ctx context.Context) (err error) {
	if err := f.prepare(ctx); err != nil {
		return err
	}
	store := component.NewStoreClient(f.Config, f.Cluster.Dir, clusterdir.MainStore)
	if f.client, err = store.Dial(context.WithoutCancel(ctx), storeDialTimeout); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.client.Close()) }()
	// The first objects after the start of a cluster are slower, so that the first step would look bad.
	if _, _, err := f.createConfigMaps(ctx, fillWorkers); err != nil {
		return err
	}
	for step := 1; step <= f.options.Steps; step++ {
		if err := f.step(ctx, step); err != nil {
			return fmt.Errorf("step %d of %d: %w", step, f.options.Steps, err)
		}
	}
	return nil
}

// part returns the part of a number that a step has reached.
func (o *fullStoreOptions) part(whole, step int) int { return whole * step / o.Steps }

// step fills the cluster up to the part of a step, and measures it.
func (f *filling) step(ctx context.Context, step int) error {
	o := f.options
	if more := o.part(o.Pods.N, step) - f.pods; more > 0 {
		if err := f.fillBound(ctx, f.pods, more, o.Nodes.N); err != nil {
			return err
		}
		f.pods += more
	}
	objects, err := f.objects(ctx)
	if err != nil {
		return err
	}
	created, measured, err := f.createConfigMaps(ctx, max(o.part(o.Objects.N, step)-objects, 1))
	if err != nil {
		return err
	}
	count := created.Latencies.Count()
	now := storeStep{
		pods: f.pods, created: created.Latencies, perSecond: float64(count) / measured.Seconds, micros: measured.MicrosPer(component.Store, int(count)),
	}
	if now.objects, err = f.objects(ctx); err != nil {
		return err
	}
	if err := f.AwaitQuiet(ctx); err != nil {
		return err
	}
	for _, probe := range []struct {
		measure func(context.Context, int) (*experiment.Latencies, error)
		result  **experiment.Latencies
	}{{f.probePuts, &now.puts}, {f.probeStartups, &now.startups}, {f.probePodsOfANode, &now.podsOfANode}, {f.probePageOfNodes, &now.pageOfNodes}} {
		if *probe.result, err = probe.measure(ctx, step); err != nil {
			return err
		}
	}
	now.usage = f.Sampler.Usage()
	f.steps = append(f.steps, now)
	f.add(now)
	return nil
}

// add adds a step to the table and to the charts.
func (f *filling) add(s storeStep) {
	row := []any{f.store, s.objects, s.pods, s.perSecond, s.created.Millis(50), s.created.Millis(99), s.micros}
	for _, l := range []*experiment.Latencies{s.puts, s.startups, s.podsOfANode, s.pageOfNodes} {
		row = append(row, l.Millis(50), l.Millis(99))
	}
	f.table.Add(append(row, s.memory(component.Store), s.memory(apiServer), s.memory(component.ControllerManager))...)
	for _, line := range []struct {
		plot, unit string
		value      float64
	}{
		{"ConfigMaps created by objects", "/s", s.perSecond}, {"store's CPU for a ConfigMap by objects", "µs", s.micros},
		{"p99 of puts by objects", "ms", s.puts.Millis(99)}, {"p99 of pod startup by objects", "ms", s.startups.Millis(99)},
	} {
		f.Result.Line(experiment.Series{Plot: line.plot, Name: f.store, X: "objects", Unit: line.unit}, float64(s.objects), line.value)
	}
}

// objects returns the number of keys in the store.
func (f *filling) objects(ctx context.Context) (int, error) {
	prefix := f.Config.Settings.EtcdPrefix() + "/"
	answer, err := f.client.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return 0, fmt.Errorf("counting the keys of the store: %w", err)
	}
	return int(answer.Count), nil
}

// createConfigMaps creates further ConfigMaps as fast as the API server accepts them.
func (f *filling) createConfigMaps(ctx context.Context, count int) (experiment.Load, experiment.Measured, error) {
	data := map[string]string{"data": strings.Repeat("x", f.options.Bytes)}
	first := f.configMaps
	task := f.Display.Task("ConfigMaps created", count)
	load := f.podLoad(count, fillWorkers, 0)
	load.Progress = task.Set
	load.Do = func(ctx context.Context, number, worker int) error {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: podName(fillPrefix, first+number)}, Data: data}
		_, err := f.Clients.Connection(worker).CoreV1().ConfigMaps(namespace).Create(ctx, object, metav1.CreateOptions{})
		return err
	}
	window := f.Sampler.Begin(ctx)
	done := load.Run(ctx)
	measured := window.End(ctx)
	f.configMaps += count
	return load, measured, f.finishLoad(ctx, load, done, task)
}

// probe executes a call at a rate for --duration, and returns the latencies.
func (f *filling) probe(ctx context.Context, what string, rate float64, do func(ctx context.Context, number, worker int) error) (*experiment.Latencies, error) {
	task := f.Display.Task(what, 0)
	limited, stop := context.WithTimeout(ctx, f.options.Duration.D)
	defer stop()
	load := f.podLoad(0, 1, rate)
	load.Workers, load.Do = probeWorkers, do
	done := load.Run(limited)
	return load.Latencies, f.finishLoad(ctx, load, done, task)
}

// probePuts overwrites a few keys of the store directly.
func (f *filling) probePuts(ctx context.Context, _ int) (*experiment.Latencies, error) {
	value := strings.Repeat("x", f.options.Bytes)
	return f.probe(ctx, "puts into the store", f.options.Puts, func(ctx context.Context, number, _ int) error {
		_, err := f.client.Put(ctx, fmt.Sprintf("/k1m-bench/%d", number%100), value)
		return err
	})
}

// probeStartups creates pods which the scheduler binds, and returns the times from each request until the pod runs. The pods
// are deleted afterwards.
func (f *filling) probeStartups(ctx context.Context, step int) (*experiment.Latencies, error) {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	s, count := f.watchOthers(watching), f.options.Startups.N
	prefix := fmt.Sprintf("startup-%d-", step)
	created, err := f.createPods(ctx, s, prefix, count, probeWorkers, float64(count)/f.options.Duration.D.Seconds())
	if err != nil {
		return nil, err
	}
	if err := f.awaitRunning(ctx, s, int(created.Latencies.Count())); err != nil {
		return nil, err
	}
	_, sinceRequest := s.measured()
	if _, err := f.deletePods(ctx, prefix, count, probeWorkers); err != nil {
		return nil, err
	}
	return sinceRequest, f.awaitGone(ctx, s, 0)
}

// probePodsOfANode lists the pods of one node after the other.
func (f *filling) probePodsOfANode(ctx context.Context, _ int) (*experiment.Latencies, error) {
	const rate = 20
	nodes := bulk.Range{Prefix: bulk.NodePrefix}
	return f.probe(ctx, "lists of the pods of a node", rate, func(ctx context.Context, number, worker int) error {
		options := metav1.ListOptions{FieldSelector: "spec.nodeName=" + nodes.Name(number%f.options.Nodes.N)}
		_, err := f.Clients.Connection(worker).CoreV1().Pods(metav1.NamespaceAll).List(ctx, options)
		return err
	})
}

// probePageOfNodes lists the first nodes, as kubectl does.
func (f *filling) probePageOfNodes(ctx context.Context, _ int) (*experiment.Latencies, error) {
	const rate, page = 5, 500
	return f.probe(ctx, "pages of nodes", rate, func(ctx context.Context, _, worker int) error {
		_, err := f.Clients.Connection(worker).CoreV1().Nodes().List(ctx, metav1.ListOptions{Limit: page})
		return err
	})
}

// publish adds the published figures beside those of the last step, and compares the last step with the first.
func (f *filling) publish(table *experiment.Table) {
	if len(f.steps) == 0 {
		return
	}
	first, last := f.steps[0], f.steps[len(f.steps)-1]
	for _, row := range [][2]string{
		{"1,000,000 objects, 200,000 pods on 10,000 nodes", fmt.Sprintf("%d objects, %d pods on %d nodes", last.objects, last.pods, f.options.Nodes.N)},
		{"up to 10 s to schedule a pod", fmt.Sprintf("startup of a pod: p50 %.0f ms, p99 %.0f ms", last.startups.Millis(50), last.startups.Millis(99))},
		{"5 s to describe a node, later 0.3 s", fmt.Sprintf("list of the pods of a node: p50 %.1f ms", last.podsOfANode.Millis(50))},
		{"etcd recommended for 2 GB, later 100 GB", fmt.Sprintf("memory of the store: %.0f MiB", last.memory(component.Store))},
	} {
		table.Add(f.store, row[0], row[1])
	}
	ratio := func(figure func(storeStep) float64) float64 { return figure(last) / max(figure(first), 1e-9) }
	f.Result.Note("%s, %d objects against %d: ConfigMaps are created %.2f × as fast, with %.2f × the store's CPU for each; the p50 of puts is %.2f × as long.",
		f.store, last.objects, first.objects, ratio(func(s storeStep) float64 { return s.perSecond }), ratio(func(s storeStep) float64 { return s.micros }),
		ratio(func(s storeStep) float64 { return s.puts.Millis(50) }))
	f.figure("ConfigMaps created, full store", "/s", last.perSecond, true)
	f.figure("store's CPU for a ConfigMap, full store", "µs", last.micros, false)
	f.figure("store's memory, full store", "MiB", last.memory(component.Store), false)
}
