// Package nodesim contains the experiment `k1m bench node-sim`: what a simulated node and its pods cost in node-sim and
// in kwok, measured in one run and judged by limits.
//
// The experiment has two rows, which `--only` selects. heartbeats.go measures nodes that renew their Leases, in clusters
// of many nodes. pods.go measures pods from their binding until they are gone, in clusters of few nodes. contender.go has
// the programs and their clusters, verdicts.go the limits.
package nodesim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// Experiments returns the experiments of this package.
func Experiments() []experiment.Experiment { return []experiment.Experiment{nodeSim} }

var nodeSim = experiment.Experiment{
	Name:  "node-sim",
	Short: "Compare what simulated nodes and their pods cost in node-sim and in kwok",
	Long: `Measure CPU time and memory of node-sim and of kwok for simulated nodes and pods, and judge the figures
of node-sim. The run fails if a figure misses a limit that it must meet. With a scale below medium these
limits are shown, but do not fail the run, because they are stated for the sizes of medium scale.

Rows (--only):
  heartbeats  CPU time for a renewal of a Lease, and memory of a node: node-sim with shared connections
              (--shared-nodes) and with a connection for each node (--wire-nodes), once for each of
              --intervals, and kwok (--kwok-nodes)
  pods        CPU time for a pod from its binding until it is gone: --pods pods on --pod-nodes nodes

Each program has a new cluster for each measurement, with nodes that are written into the store. In the
row heartbeats, the nodes of node-sim renew their Leases through kube-gateway, which writes them into the
store, because kube-apiserver would be the limit. In the row pods, both programs connect to
kube-apiserver. Pods are created with a node, so no scheduler works on them.`,
	Example: `  k1m bench node-sim
  k1m bench node-sim --only pods
  k1m bench node-sim --only heartbeats --shared-nodes 100000 --intervals 10s
  k1m bench node-sim --scale small`,
	New: func() experiment.Options { return defaultOptions() },
}

// row is a part of the experiment that can run alone.
type row struct {
	name    string
	measure func(*bench, context.Context) error
}

// rows are the rows, in the order in which they run.
var rows = []row{{"heartbeats", (*bench).heartbeats}, {"pods", (*bench).pods}}

func rowNames() (names []string) {
	for _, r := range rows {
		names = append(names, r.name)
	}
	return names
}

// options are the options of the experiment.
type options struct {
	Only                     []string
	Shared, Wire, Kwok       experiment.Count // nodes of the row heartbeats
	Intervals                []time.Duration
	Duration                 experiment.Span
	PodNodes, Pods, PodsRate experiment.Count
	Timeout                  time.Duration
}

func defaultOptions() *options {
	return &options{
		Only:   rowNames(),
		Shared: experiment.ByScale(20_000, 200), Wire: experiment.ByScale(6000, 100), Kwok: experiment.ByScale(1000, 100),
		Intervals: []time.Duration{10 * time.Second, 4 * time.Second}, Duration: experiment.SpanByScale(30*time.Second, 12*time.Second),
		PodNodes: experiment.ByScale(100, 10), Pods: experiment.ByScale(2000, 100), PodsRate: experiment.Fixed(50),
		Timeout: 5 * time.Minute,
	}
}

// AddFlags binds the options to flags.
func (o *options) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.Only, "only", o.Only, "rows to measure: "+strings.Join(rowNames(), ", "))
	fs.Var(&o.Shared, "shared-nodes", o.Shared.Usage("row heartbeats: number of nodes of node-sim with shared connections"))
	fs.Var(&o.Wire, "wire-nodes", o.Wire.Usage("row heartbeats: number of nodes of node-sim with a connection each"))
	fs.Var(&o.Kwok, "kwok-nodes", o.Kwok.Usage("row heartbeats: number of nodes of kwok, which renew their Leases every 10 s"))
	fs.DurationSliceVar(&o.Intervals, "intervals", o.Intervals, "row heartbeats: times between two heartbeats of a node of node-sim; each is measured")
	fs.Var(&o.Duration, "duration", o.Duration.Usage("how long heartbeats are measured, and an idle cluster before its pods"))
	fs.Var(&o.PodNodes, "pod-nodes", o.PodNodes.Usage("row pods: number of nodes"))
	fs.Var(&o.Pods, "pods", o.Pods.Usage("row pods: number of pods"))
	fs.Var(&o.PodsRate, "pods-rate", "row pods: number of pods that are created, and later deleted, in a second")
	fs.DurationVar(&o.Timeout, "timeout", o.Timeout, "time limit for the start of a cluster, and for waiting without progress")
}

// Validate returns the first invalid option as a usage error.
func (o *options) Validate() error {
	for _, name := range o.Only {
		if !slices.Contains(rowNames(), name) {
			return usage.Errorf("--only %q: no such row; choose one of %s", name, strings.Join(rowNames(), ", "))
		}
	}
	for _, interval := range o.Intervals {
		// node-sim renews a Lease after a quarter of its duration, which has whole seconds.
		if interval < time.Second || interval%(time.Second/4) != 0 {
			return usage.Errorf("--intervals %s: choose 1s or more, in steps of 250ms", interval)
		}
	}
	switch {
	case len(o.Only) == 0:
		return usage.Errorf("--only: the list is empty; choose %s", strings.Join(rowNames(), ", "))
	case len(o.Intervals) == 0:
		return usage.Errorf("--intervals: the list is empty; choose one or more, such as 10s")
	case o.Timeout <= 0:
		return usage.Errorf("--timeout %s: must be more than 0", o.Timeout)
	}
	return nil
}

// bench is a run of the experiment.
type bench struct {
	*experiment.Run
	options *options
}

// Run implements experiment.Options.
func (o *options) Run(ctx context.Context, run *experiment.Run) error {
	if run.UsesExisting() {
		return usage.Errorf("--name %s: the experiment needs clusters of its own; choose the name of a cluster that does not exist", run.Dir.Name())
	}
	b := &bench{Run: run, options: o}
	for _, r := range rows {
		if !slices.Contains(o.Only, r.name) {
			continue
		}
		if err := r.measure(b, ctx); err != nil {
			return fmt.Errorf("row %s: %w", r.name, err)
		}
	}
	return nil
}
