package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/supervisor"
)

// daemonsPerNode is the number of clients that watch the same node.
const daemonsPerNode = 5

var restart = experiment.Experiment{
	Name:  "restart",
	Short: "Kill every API server of a full cluster, so that all clients list at the same time",
	Long: `Fill a cluster, start --clients clients that each watch the pods of one node (five clients
per node, like the pods of DaemonSets), and kill every kube-apiserver. All clients and the
components of the cluster list again as soon as they can. The table shows how long this takes, the
peak memory of the API servers and the store, and the errors of the clients. Errors do not fail
the run. It fails if a client does not watch again.`,
	Example: `  k1m bench restart
  k1m bench restart --nodes 1000 --pods 20000 --clients 5000 --apiservers 3 --gateway`,
	New: func() experiment.Options {
		o := &restartOptions{
			clusters: defaultClusters(experiment.ByScale(200, 10)), Pods: experiment.ByScale(4000, 50),
			Clients: experiment.ByScale(500, 20), servers: servers{APIServers: 1},
		}
		o.changeSettings = o.apply
		return o
	},
}

type restartOptions struct {
	clusters
	servers
	Pods      experiment.Count
	Clients   experiment.Count
	FromStore bool
}

// AddFlags binds the options to flags.
func (o *restartOptions) AddFlags(fs *pflag.FlagSet) {
	o.clusters.AddFlags(fs)
	fs.Var(&o.Pods, "pods", o.Pods.Usage("number of pods in the cluster"))
	fs.Var(&o.Clients, "clients", o.Clients.Usage("number of watching clients, each with its own connection"))
	o.servers.AddFlags(fs)
	fs.BoolVar(&o.FromStore, "newest", o.FromStore, "clients list the newest state instead of resourceVersion=0")
}

// Validate returns the first invalid option as a usage error.
func (o *restartOptions) Validate() error {
	if err := errors.Join(o.servers.Validate(), o.fit(o.Pods)); err != nil {
		return err
	}
	return o.clusters.Validate()
}

// Run implements experiment.Options.
func (o *restartOptions) Run(ctx context.Context, run *experiment.Run) error {
	table := restartTable(run.Result)
	gateways := o.gatewayTable(run.Result)
	return o.each(ctx, run, func(ctx context.Context, t *storeRun) error {
		if err := t.prepareFilled(ctx, o.Pods.N); err != nil {
			return err
		}
		return o.measureRestart(ctx, t, table, gateways)
	})
}

func restartTable(r *experiment.Result) *experiment.Table {
	return r.Table("Recovery after all API servers were killed", "store", "clients", "pods", "API server ready, s", "p50 listed, s", "p99 listed, s", "all listed, s",
		"failed attempts", "kube-apiserver: before, MiB", "peak, MiB", "CPU, s", "store: before, MiB", "peak, MiB", "CPU, s")
}

// measureRestart starts the clients, kills the API servers, and waits until all clients watch again.
func (o *restartOptions) measureRestart(ctx context.Context, t *storeRun, table, gateways *experiment.Table) error {
	d := &daemons{lists: experiment.NewLatencies(), errors: experiment.NewTally(1), fromStore: o.FromStore}
	nodes, err := t.nodes(ctx, o.Nodes.N)
	if err != nil {
		return err
	}
	watching, stop := context.WithCancel(ctx)
	ended, err := d.start(watching, t, o.Clients.N, nodes)
	defer ended.Wait()
	defer stop()
	if err != nil {
		return err
	}
	if err := t.await(ctx, "clients watch", o.Clients.N, d.synced); err != nil {
		return err
	}
	if err := t.AwaitQuiet(ctx); err != nil {
		return err
	}
	before := t.Sampler.Begin(ctx).End(ctx)
	window := t.Sampler.Begin(ctx)
	killed := time.Now()
	d.startMeasuring(killed)
	t.mark("killed", killed)
	if err := t.killAPIServers(); err != nil {
		return err
	}
	ready, err := t.awaitAPIServers(ctx, killed)
	if err != nil {
		return err
	}
	if err := t.await(ctx, "clients watch again", o.Clients.N, d.synced); err != nil {
		return err
	}
	all := d.lists.Seconds(100)
	t.mark("all have listed", time.Now())
	m := window.End(ctx)
	failures := "none"
	if kinds := d.errors.Describe(); kinds != "" {
		failures = kinds
	}
	t.Result.Errors.AddMany(int64(d.synced()), nil)
	mib := func(bytes int64) float64 { return float64(bytes) / mebibyte }
	table.Add(t.store, o.Clients.N, o.Pods.N, ready.Seconds(), d.lists.Seconds(50), d.lists.Seconds(99), all, failures,
		mib(before.Resident[apiServer]), mib(m.Peak[apiServer]), m.CPU[apiServer].Seconds(),
		mib(before.Resident[component.Store]), mib(m.Peak[component.Store]), m.CPU[component.Store].Seconds())
	t.gatewayCosts(gateways, "recovery", m)
	t.figure("time until all clients have listed", "s", all, false)
	t.figure("peak memory of the store", "MiB", mib(m.Peak[component.Store]), false)
	t.figure("peak memory of kube-apiserver", "MiB", mib(m.Peak[apiServer]), false)
	t.figure("CPU of the store", "CPU s", m.CPU[component.Store].Seconds(), false)
	return nil
}

// killAPIServers kills all API servers. The supervisor restarts them.
func (t *storeRun) killAPIServers() error {
	state, err := supervisor.ReadState(t.Run.Dir)
	if err != nil {
		return err
	}
	for i := range t.Config.Settings.APIServers {
		for _, c := range state.Components {
			if c.Name != clusterdir.APIServerName(i) {
				continue
			}
			if err := c.Process.Signal(syscall.SIGKILL); err != nil {
				return fmt.Errorf("killing %s: %w", c.Name, err)
			}
		}
	}
	return nil
}

// awaitAPIServers waits until an API server is ready, and returns the time since killed.
func (t *storeRun) awaitAPIServers(ctx context.Context, killed time.Time) (time.Duration, error) {
	// A gateway would answer for another API server.
	direct, err := kubernetes.NewForConfig(t.Rest)
	if err != nil {
		return 0, fmt.Errorf("connecting to the API server: %w", err)
	}
	err = t.await(ctx, "API server ready", 1, func() int {
		limited, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if _, err := direct.CoreV1().RESTClient().Get().AbsPath("/readyz").DoRaw(limited); err != nil {
			return 0
		}
		return 1
	})
	return time.Since(killed), err
}

// daemons are clients that each watch the pods of one node, as pods of DaemonSets do. They list again when
// their watch ends.
type daemons struct {
	watching  atomic.Int64          // number of clients that have listed
	lists     *experiment.Latencies // time from since until a client has listed
	errors    *experiment.Tally
	fromStore bool

	mu    sync.Mutex
	since time.Time // when the API servers were killed
}

// synced returns the number of clients that have listed.
func (d *daemons) synced() int { return int(d.watching.Load()) }

// startMeasuring resets the counts: no client has listed since now.
func (d *daemons) startMeasuring(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.since = now
	d.watching.Store(0)
	d.lists, d.errors = experiment.NewLatencies(), experiment.NewTally(1)
}

// listed records that a client has listed.
func (d *daemons) listed() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.watching.Add(1)
	if !d.since.IsZero() {
		d.lists.Record(time.Since(d.since))
	}
}

func (d *daemons) failed(kind string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.errors.Add(kind, err)
}

// countErrors returns a transport that counts every failed request, also those that client-go retries
// without reporting an error.
func (d *daemons) countErrors(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(request)
		switch {
		case request.Context().Err() != nil:
		case err != nil:
			d.failed(bulk.ErrorKind(err), err)
		case response.StatusCode >= http.StatusBadRequest:
			d.failed(response.Status, errors.New(response.Status))
		}
		return response, err
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

// start starts the clients. They end with ctx.
func (d *daemons) start(ctx context.Context, t *storeRun, count, nodes int) (*sync.WaitGroup, error) {
	var group sync.WaitGroup
	clients, err := t.connect(count, 1, d.countErrors)
	if err != nil {
		return &group, err
	}
	var events atomic.Int64
	for i := range count {
		w := stream{clients.Connection(i), "pods", &events}
		node := bulk.Range{Prefix: bulk.NodePrefix}.Name(i / daemonsPerNode % max(nodes, 1))
		group.Go(func() { d.run(ctx, w, node) })
	}
	return &group, nil
}

// run lists and watches until ctx ends, with the backoff of client-go's reflector.
func (d *daemons) run(ctx context.Context, w stream, node string) {
	newBackoff := func() wait.Backoff {
		return wait.Backoff{Duration: 800 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 6, Cap: 30 * time.Second}
	}
	backoff := newBackoff()
	for ctx.Err() == nil {
		options := metav1.ListOptions{FieldSelector: "spec.nodeName=" + node}
		if !d.fromStore {
			options.ResourceVersion = "0"
		}
		list, err := w.client.CoreV1().Pods(namespace).List(ctx, options)
		if err == nil {
			backoff = newBackoff()
			d.listed()
			options.ResourceVersion = list.ResourceVersion
			// follow always returns an error.
			_ = w.follow(ctx, options)
		}
		select {
		case <-ctx.Done():
		case <-time.After(backoff.Step()):
		}
	}
}
