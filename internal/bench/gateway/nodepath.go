package gateway

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

var nodePath = experiment.Experiment{
	Name:  "node-path",
	Short: "Compare what kube-gateway serves to kubelets with kube-apiserver",
	Long: `Compare the Lease renewals and watches of kubelets that kube-gateway serves with those that kubelets
send to kube-apiserver directly, and judge the figures. The run fails if a figure misses a limit that it
must meet. With a scale below medium these limits are shown, but do not fail the run, because they are
stated for the sizes of medium scale.

Rows (--only):
  renewals    CPU time of kube-gateway, the store and kube-apiserver for a renewal, from --nodes
              connections with the certificate of a node each
  detection   time until no renewal is served any more after a webhook for Leases was created
  failure     time until kube-controller-manager finds --failures of --nodes nodes NotReady that stop to
              renew their Leases. It takes a minute and a half in each cluster
  watches     memory of --kubelets kubelets, each with a connection and six watches, and CPU time of an
              event
  reconnects  time until --reconnects kubelets have their watches again after all connections were
              closed at once

There are two clusters, one after the other: one whose clients connect to the API server, and one with
kube-gateway and its node path. The run fails if kube-gateway does not serve renewals and watches. Those
that it forwards do not count as served.

The kubelets are simulated on the cores of the servers. kube-gateway needs two open files for each, so the
row reconnects has fewer kubelets if the limit on open files (ulimit -Hn) is low and may not be raised.`,
	Example: `  k1m bench node-path
  k1m bench node-path --only renewals
  k1m bench node-path --scale small`,
	New: func() experiment.Options { return defaultNodePathOptions() },
}

// nodePathRow is a part of the experiment that can run alone. It is measured in each cluster, and judged when all
// clusters were measured.
type nodePathRow struct {
	name    string
	measure func(*nodePathLab, context.Context) error
	judge   func(*nodePathRun)
}

// nodePathRows are the rows, in the order in which they run.
var nodePathRows = []nodePathRow{
	{"renewals", (*nodePathLab).renewals, (*nodePathRun).judgeRenewals},
	{"detection", (*nodePathLab).detection, (*nodePathRun).judgeDetection},
	{"failure", (*nodePathLab).failure, (*nodePathRun).judgeFailure},
	{"watches", (*nodePathLab).watchingKubelets, (*nodePathRun).judgeWatches},
	{"reconnects", (*nodePathLab).reconnects, (*nodePathRun).judgeReconnects},
}

func nodePathRowNames() (names []string) {
	for _, r := range nodePathRows {
		names = append(names, r.name)
	}
	return names
}

// nodePathOptions are the options of the experiment.
type nodePathOptions struct {
	Only       experiment.Choice
	Nodes      experiment.Count
	Duration   experiment.Span
	Rules      experiment.Count
	Failures   experiment.Count
	Kubelets   experiment.Count
	Reconnects experiment.Count
	Timeout    time.Duration
}

func defaultNodePathOptions() *nodePathOptions {
	return &nodePathOptions{
		Only:  experiment.ChoiceByScale(strings.Join(nodePathRowNames(), ","), "renewals,detection,watches,reconnects"),
		Nodes: experiment.ByScale(1000, 100), Duration: experiment.SpanByScale(8*time.Second, 2*time.Second),
		Rules: experiment.ByScale(10, 2), Failures: experiment.ByScale(30, 8),
		Kubelets: experiment.ByScale(2000, 200), Reconnects: experiment.ByScale(20_000, 500), Timeout: 3 * time.Minute,
	}
}

// AddFlags binds the options to flags.
func (o *nodePathOptions) AddFlags(fs *pflag.FlagSet) {
	fs.Var(&o.Only, "only", "rows to measure, separated by commas: "+strings.Join(nodePathRowNames(), ", ")+" (default all; below medium scale all but failure)")
	fs.Var(&o.Nodes, "nodes", o.Nodes.Usage("rows renewals, detection and failure: number of nodes, with a connection each"))
	fs.Var(&o.Duration, "duration", o.Duration.Usage("rows renewals and watches: duration of each measurement"))
	fs.Var(&o.Rules, "rules", o.Rules.Usage("row detection: number of times that a webhook is created"))
	fs.Var(&o.Failures, "failures", o.Failures.Usage("row failure: number of nodes that fail"))
	fs.Var(&o.Kubelets, "kubelets", o.Kubelets.Usage("row watches: number of kubelets"))
	fs.Var(&o.Reconnects, "reconnects", o.Reconnects.Usage("row reconnects: number of kubelets"))
	fs.DurationVar(&o.Timeout, "timeout", o.Timeout, "time limit for the start of a cluster, and for waiting without progress")
}

// Validate returns the first invalid option as a usage error.
func (o *nodePathOptions) Validate() error {
	for _, name := range o.only() {
		if !slices.Contains(nodePathRowNames(), name) {
			return usage.Errorf("--only %q: no such row; choose one of %s", name, strings.Join(nodePathRowNames(), ", "))
		}
	}
	if o.Timeout <= 0 {
		return usage.Errorf("--timeout %s: must be more than 0", o.Timeout)
	}
	return nil
}

// only returns the names of the selected rows.
func (o *nodePathOptions) only() []string { return namesIn(o.Only.Text) }

// nodePathRun is a run of the experiment, with the figures by the name of the front.
type nodePathRun struct {
	*bench
	own         *nodePathOptions
	costs       map[string]map[string]renewalCost // by front and load
	detected    map[string][]detection
	failures    map[string]failures
	kubelets    map[string]kubeletCost
	reconnected map[string]reconnection
	tables      nodePathTables
	// withFiles is how many kubelets the limit on open files allows.
	withFiles int
}

// nodePathTables are the tables of the rows, which have rows of both fronts. They are nil until a row is measured.
type nodePathTables struct{ renewals, detection, failure, watches, reconnects *experiment.Table }

// Run implements experiment.Options.
func (o *nodePathOptions) Run(ctx context.Context, run *experiment.Run) error {
	if run.UsesExisting() {
		return usage.Errorf("--name %s: the experiment needs clusters of its own; choose the name of a cluster that does not exist", run.Dir.Name())
	}
	r := &nodePathRun{
		bench: &bench{Run: run, options: &options{Timeout: o.Timeout}}, own: o,
		costs: map[string]map[string]renewalCost{}, detected: map[string][]detection{},
		failures: map[string]failures{}, kubelets: map[string]kubeletCost{}, reconnected: map[string]reconnection{},
	}
	var err error
	if r.withFiles, err = raiseOpenFiles(mostKubelets); err != nil {
		return err
	}
	rows := slices.DeleteFunc(slices.Clone(nodePathRows), func(r nodePathRow) bool { return !slices.Contains(o.only(), r.name) })
	for _, name := range []string{direct, kubeGateway} {
		err := r.withNodePathLab(ctx, name, func(ctx context.Context, l *nodePathLab) error {
			for _, row := range rows {
				if err := row.measure(l, ctx); err != nil {
					return fmt.Errorf("row %s, %s: %w", row.name, name, err)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for _, row := range rows {
		row.judge(r)
	}
	return nil
}
