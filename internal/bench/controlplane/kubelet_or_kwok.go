package controlplane

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/util/machine"
	"github.com/k8s-1m/k8s-1m/internal/util/process"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// implementation is a way to have nodes: hollow kubelets, kwok, or node-sim in a mode.
type implementation struct {
	name string
	// simulator and mode are those of the cluster. Hollow kubelets run in a cluster of kwok without other nodes.
	simulator, mode string
}

var (
	kubeletNodes = implementation{"kubelet", clusterdir.SimulatorKwok, ""}
	// implementations are in the order of the measurement.
	implementations = []implementation{
		kubeletNodes,
		{"kwok", clusterdir.SimulatorKwok, ""},
		{"node-sim-wire", clusterdir.SimulatorNodeSim, clusterdir.NodesWire},
		{"node-sim-shared", clusterdir.SimulatorNodeSim, clusterdir.NodesShared},
	}
)

func implementationNames() (names []string) {
	for _, i := range implementations {
		names = append(names, i.name)
	}
	return names
}

var kubeletOrKwok = experiment.Experiment{
	Name:  "kubelet-or-kwok",
	Short: "Compare the API server load of hollow kubelets with that of kwok and node-sim",
	Long: `Create a cluster with hollow kubelets, which run kubelet's own code without containers, and then
clusters with the same number of nodes of kwok and of node-sim (--only selects some of them). Nodes of
node-sim have a connection and the watches of a kubelet each (node-sim-wire), or share connections
(node-sim-shared). In each cluster the nodes are idle for --hold. Then --pods-per-node pods start on each
node, and the nodes are idle with these pods for --hold. The tables show the requests by verb and
resource, the watches, and the watch events.

A hollow kubelet is a process of about 100 MiB. The number of nodes is limited so that all
kubelets fit in three quarters of the available memory. Hollow kubelets use administrator
credentials, so the cost of the Node authorizer is not included. They record no events. A hollow
kubelet listens on a port of all interfaces; this cannot be configured.`,
	Example: `  k1m bench kubelet-or-kwok
  k1m bench kubelet-or-kwok --nodes 1000 --hold 2m   # limited by the memory of the machine
  k1m bench kubelet-or-kwok --nodes 5000 --only kwok,node-sim-wire,node-sim-shared`,
	New: func() experiment.Options {
		o := &kubeletOptions{
			clusters: defaultClusters(experiment.ByScale(20, 2)), PodsPerNode: 5, Only: implementationNames(),
			Hold: experiment.SpanByScale(30*time.Second, leaseInterval),
		}
		o.Stores, o.zeroNodes, o.choosesNodes = []string{clusterdir.StoreMemEtcd}, true, true
		return o
	},
}

type kubeletOptions struct {
	clusters
	Only        []string // names of implementations
	PodsPerNode int
	Hold        experiment.Span
}

// AddFlags binds the options to flags.
func (o *kubeletOptions) AddFlags(fs *pflag.FlagSet) {
	o.clusters.AddFlags(fs)
	fs.StringSliceVar(&o.Only, "only", o.Only, "nodes to measure: "+strings.Join(implementationNames(), ", "))
	fs.IntVar(&o.PodsPerNode, "pods-per-node", o.PodsPerNode, "number of pods to start on each node")
	fs.Var(&o.Hold, "hold", o.Hold.Usage("how long nodes are idle, without and with pods"))
}

// Validate returns the first invalid option as a usage error.
func (o *kubeletOptions) Validate() error {
	if o.PodsPerNode < 1 || o.PodsPerNode > bulk.DefaultNodeShape().Pods/2 {
		return usage.Errorf("--pods-per-node %d: choose 1 to %d", o.PodsPerNode, bulk.DefaultNodeShape().Pods/2)
	}
	if len(o.Stores) > 1 {
		return usage.Errorf("--stores: the experiment compares kubelet with kwok; choose one store")
	}
	for _, name := range o.Only {
		if !slices.Contains(implementationNames(), name) {
			return usage.Errorf("--only %q: no such nodes; choose some of %s", name, strings.Join(implementationNames(), ", "))
		}
	}
	if len(o.Only) == 0 {
		return usage.Errorf("--only: the list is empty; choose some of %s", strings.Join(implementationNames(), ", "))
	}
	return o.clusters.Validate()
}

// Run implements experiment.Options.
func (o *kubeletOptions) Run(ctx context.Context, run *experiment.Run) error {
	if run.UsesExisting() {
		return usage.Errorf("--name %s: kubelet-or-kwok needs a cluster without nodes, so it cannot use an existing cluster; omit --name", run.Dir.Name())
	}
	if o.measures(kubeletNodes) {
		if _, err := component.FindBinary(hollowNode); err != nil {
			return err
		}
		if err := o.limitNodes(run); err != nil {
			return err
		}
	}
	requests := run.Result.Table("Requests of nodes to the API server", "nodes", "phase", "request", "requests, /s", "per node, /min")
	costs := run.Result.Table("Cost of these requests", "nodes", "phase", "watches", "watch events, /s",
		"cores: kube-apiserver", "store", "nodes", "memory: kube-apiserver, MiB", "store, MiB", "nodes, MiB")
	figures := map[string][]experiment.Figure{}
	for _, i := range implementations {
		if !o.measures(i) {
			continue
		}
		clusters := o.clusters
		clusters.NodeSimulator, clusters.NodeMode = i.simulator, i.mode
		clusters.Keep = o.Keep && i.name == o.last()
		err := clusters.each(ctx, run, func(ctx context.Context, t *storeRun) error {
			p := &nodeRun{options: o, storeRun: t, implementation: i, requests: requests, costs: costs}
			err := p.measure(ctx)
			figures[i.name] = t.figures
			return err
		})
		if err != nil {
			return fmt.Errorf("with %s: %w", i.name, err)
		}
	}
	for _, i := range implementations {
		if i != kubeletNodes {
			run.Result.Compare(i.name, kubeletNodes.name, figures[i.name], figures[kubeletNodes.name])
		}
	}
	return nil
}

// measures reports whether an implementation is selected.
func (o *kubeletOptions) measures(i implementation) bool { return slices.Contains(o.Only, i.name) }

// last returns the name of the implementation that is measured last.
func (o *kubeletOptions) last() (name string) {
	for _, i := range implementations {
		if o.measures(i) {
			name = i.name
		}
	}
	return name
}

// limitNodes reduces the number of nodes if that many kubelets do not fit in memory, and then adds a note.
func (o *kubeletOptions) limitNodes(run *experiment.Run) error {
	state, err := machine.ReadState()
	if err != nil {
		return err
	}
	most := max(int(state.Available*3/4/kubeletMemory), 1)
	if o.Nodes.N > most {
		run.Result.Note("%d hollow kubelets do not fit in the memory of this machine; the run had %d nodes.", o.Nodes.N, most)
		o.Nodes.N = most
	}
	return nil
}

// nodeRun is the run with one implementation of nodes. nodes is empty unless these are hollow kubelets.
type nodeRun struct {
	options        *kubeletOptions
	storeRun       *storeRun
	implementation implementation
	nodes          kubelets

	requests, costs *experiment.Table
}

// measure creates the nodes, measures the cluster, and stops the kubelets. It returns an error if a kubelet
// exits before that.
func (p *nodeRun) measure(ctx context.Context) (err error) {
	t, count := p.storeRun, p.options.Nodes.N
	if err := t.prepareEmpty(ctx); err != nil {
		return err
	}
	if p.implementation != kubeletNodes {
		if _, err := t.createNodes(ctx, 0, count, bulk.DefaultNodeShape()); err != nil {
			return err
		}
		return p.measureReady(ctx)
	}
	alive, failed := context.WithCancelCause(ctx)
	defer failed(nil)
	if p.nodes, err = t.startKubelets(alive, count, failed); err != nil {
		return err
	}
	if err = t.awaitNodes(alive, count); err == nil {
		err = p.measureReady(alive)
	}
	if ctx.Err() == nil && alive.Err() != nil {
		err = context.Cause(alive)
	}
	return errors.Join(err, p.nodes.stop())
}

// measureReady measures a cluster whose nodes are ready.
func (p *nodeRun) measureReady(ctx context.Context) error {
	t, count := p.storeRun, p.options.Nodes.N
	// Within this interval every node creates its Lease.
	if err := t.wait(ctx, "nodes settle", leaseInterval); err != nil {
		return err
	}
	if err := p.idle(ctx, "idle"); err != nil {
		return err
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	s := t.watchPods(watching, fillPrefix)
	if err := p.measurePhase(ctx, "pods start", func() error { return t.fill(ctx, s, count*p.options.PodsPerNode) }); err != nil {
		return err
	}
	return p.idle(ctx, "idle with pods")
}

// idle measures the nodes without changes for --hold.
func (p *nodeRun) idle(ctx context.Context, what string) error {
	return p.measurePhase(ctx, what, func() error { return p.storeRun.wait(ctx, "nodes, "+what, p.options.Hold.D) })
}

// measurePhase measures the requests of the nodes while do runs.
func (p *nodeRun) measurePhase(ctx context.Context, what string, do func() error) error {
	t, count := p.storeRun, float64(p.options.Nodes.N)
	t.mark(p.implementation.name+": "+what, time.Now())
	begun := time.Since(t.Result.Time).Seconds()
	before := p.usage()
	window := t.Sampler.Begin(ctx)
	if err := do(); err != nil {
		return err
	}
	m := window.End(ctx)
	after := p.usage()
	byTitle := map[string]float64{}
	for _, c := range m.Calls {
		byTitle[c.Title()] += float64(c.Count)
	}
	const minRate = 0.02 // requests per second
	for _, title := range slices.Sorted(maps.Keys(byTitle)) {
		if perSecond := byTitle[title] / m.Seconds; perSecond >= minRate {
			p.requests.Add(p.implementation.name, what, title, perSecond, 60*perSecond/count)
		}
	}
	watches, events := t.Sampler.Mean("kube-apiserver: watches", begun), t.Sampler.Mean("kube-apiserver: watch events sent", begun)
	mib := func(bytes int64) float64 { return float64(bytes) / mebibyte }
	p.costs.Add(p.implementation.name, what, watches, events, m.Cores(apiServer), m.Cores(component.Store), (after.CPU-before.CPU).Seconds()/m.Seconds,
		mib(m.Peak[apiServer]), mib(m.Peak[component.Store]), mib(after.Resident))
	t.figure("watches, "+what, "", watches, false)
	t.figure("watch events, "+what, "/s", events, false)
	t.figure("Lease updates, "+what, "/s", byTitle["PUT leases"]/m.Seconds, false)
	return nil
}

// usage returns the CPU time and memory of the processes that implement the nodes.
func (p *nodeRun) usage() process.Usage {
	if p.nodes != nil {
		return p.nodes.usage()
	}
	return p.storeRun.Sampler.Usage()[p.storeRun.simulator()]
}

// readyNodes returns the number of ready nodes.
func (t *storeRun) readyNodes(ctx context.Context) (int, error) {
	nodes, err := t.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return 0, err
	}
	ready := 0
	for i := range nodes.Items {
		if bulk.NodeReady(&nodes.Items[i]) {
			ready++
		}
	}
	return ready, nil
}
