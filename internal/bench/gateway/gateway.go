// Package gateway contains the experiments `k1m bench gateway`, `k1m bench node-path` and `k1m bench lease-bypass`.
// The first compares kube-gateway with HAProxy in TCP mode and with direct connections to the API servers, in one
// run, and judges the figures by limits. The second compares Lease renewals and watches of kubelets that kube-gateway
// serves with direct connections; it is in the files nodepath*.go, node.go and kubelets*.go. The third measures what renewals that bypass the API
// servers still cost them; it is in the files leasebypass*.go.
//
// The experiment gateway has rows, which `--only` selects. The rows cpu, latency, throughput and memory use a cluster
// with one API server. The rows balance, busy, storm and flood use one with three API servers, and
// kill uses clusters whose nodes connect through gateways.
//
// lab.go creates the clusters, fronts.go starts HAProxy and kube-gateway in front of their API servers, and
// backend.go is a server that costs less CPU than an API server. connections.go is the load generator of the
// first rows; the others use client-go. verdicts.go contains the limits.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// Experiments returns the experiments of this package.
func Experiments() []experiment.Experiment {
	return []experiment.Experiment{gateway, nodePath, leaseBypass}
}

var gateway = experiment.Experiment{
	Name:  "gateway",
	Short: "Compare kube-gateway with HAProxy and with direct connections to the API servers",
	Long: `Compare kube-gateway with HAProxy in TCP mode and with direct connections to the API servers, and
judge the figures. The run fails if a figure misses a limit that it must meet. With a scale below medium
these limits are shown, but do not fail the run, because they are stated for the sizes of medium scale.

Rows (--only):
  cpu         CPU time of the front for a small GET, from --connections clients
  latency     latency of a small GET at half of the highest rate of direct connections
  throughput  bytes of lists and events of watches per second
  memory      memory of the front for a connection with a watch
  balance     watches by API server, and lists, after one of three API servers was killed and is back
  busy        answers 429 while one of three API servers is too busy
  storm       memory of the API servers, and Lease renewals, while clients list all pods in a loop
  flood       latency of other clients while one User-Agent floods, without and with a throttle
  kill        nodes that become NotReady after a gateway was killed

HAProxy is left out if it is not installed.`,
	Example: `  k1m bench gateway
  k1m bench gateway --only cpu,memory
  k1m bench gateway --scale small`,
	New: func() experiment.Options { return defaultOptions() },
}

// row is a part of the experiment that can run alone.
type row struct {
	name    string
	measure func(*lab, context.Context) error
}

// The rows, in the order in which they run.
var (
	oneServerRows    = []row{{"cpu", (*lab).cpu}, {"latency", (*lab).latency}, {"throughput", (*lab).throughput}, {"memory", (*lab).memory}}
	threeServersRows = []row{{"balance", (*lab).balance}, {"busy", (*lab).busy}, {"storm", (*lab).storm}, {"flood", (*lab).flood}}
)

// killRow is the name of the row that creates clusters of its own.
const killRow = "kill"

func rowNames() (names []string) {
	for _, r := range append(slices.Clone(oneServerRows), threeServersRows...) {
		names = append(names, r.name)
	}
	return append(names, killRow)
}

// options are the options of the experiment.
type options struct {
	Only                                experiment.Choice
	Connections                         experiment.Count
	Duration                            experiment.Span
	Rounds                              experiment.Count
	ListPods                            experiment.Count
	Watchers                            experiment.Count
	Idle                                experiment.Count
	Informers                           experiment.Count
	Settle                              experiment.Span
	StormPods, StormClients, LeaseNodes experiment.Count
	Storm                               experiment.Span
	FloodRate                           float64
	Flood                               experiment.Span
	KillNodes                           experiment.Count
	KillTime                            experiment.Span
	Timeout                             time.Duration
}

func defaultOptions() *options {
	return &options{
		Connections: experiment.ByScale(1000, 100), Duration: experiment.SpanByScale(6*time.Second, time.Second), Rounds: experiment.ByScale(3, 1),
		ListPods: experiment.ByScale(5000, 200), Watchers: experiment.ByScale(200, 20), Idle: experiment.ByScale(5000, 200),
		Informers: experiment.ByScale(300, 30), Settle: experiment.SpanByScale(time.Minute, 20*time.Second),
		StormPods: experiment.ByScale(50_000, 1000), StormClients: experiment.ByScale(100, 10), LeaseNodes: experiment.ByScale(50, 10),
		Storm: experiment.SpanByScale(time.Minute, 10*time.Second), FloodRate: 10_000, Flood: experiment.SpanByScale(15*time.Second, 5*time.Second),
		KillNodes: experiment.ByScale(1000, 50), KillTime: experiment.SpanByScale(90*time.Second, time.Minute),
		Only: experiment.ChoiceByScale(strings.Join(rowNames(), ","), "cpu,latency,throughput,memory"), Timeout: 3 * time.Minute,
	}
}

// AddFlags binds the options to flags.
func (o *options) AddFlags(fs *pflag.FlagSet) {
	fs.Var(&o.Only, "only", "rows to measure, separated by commas: "+strings.Join(rowNames(), ", ")+" (default all; below medium scale the first four)")
	fs.Var(&o.Connections, "connections", o.Connections.Usage("rows cpu and latency: number of client connections"))
	fs.Var(&o.Duration, "duration", o.Duration.Usage("duration of each measurement of the rows cpu, latency and throughput"))
	fs.Var(&o.Rounds, "rounds", o.Rounds.Usage("rows latency and throughput: number of measurements of each front, of which the median counts"))
	fs.Var(&o.ListPods, "list-pods", o.ListPods.Usage("row throughput: number of pods in a list"))
	fs.Var(&o.Watchers, "watchers", o.Watchers.Usage("row throughput: number of clients with a watch"))
	fs.Var(&o.Idle, "idle", o.Idle.Usage("row memory: number of idle connections with a watch"))
	fs.Var(&o.Informers, "informers", o.Informers.Usage("row balance: number of clients with an informer"))
	fs.Var(&o.Settle, "settle", o.Settle.Usage("rows balance and busy: time in which the load should become even"))
	fs.Var(&o.StormPods, "storm-pods", o.StormPods.Usage("row storm: number of pods"))
	fs.Var(&o.StormClients, "storm-clients", o.StormClients.Usage("row storm: number of clients that list all pods in a loop"))
	fs.Var(&o.LeaseNodes, "lease-nodes", o.LeaseNodes.Usage("row storm: number of clients that renew the Lease of a node once a second"))
	fs.Var(&o.Storm, "storm", o.Storm.Usage("row storm: duration for each front"))
	fs.Float64Var(&o.FloodRate, "flood-rate", o.FloodRate, "row flood: requests per second of the client that floods")
	fs.Var(&o.Flood, "flood", o.Flood.Usage("row flood: duration of each measurement"))
	fs.Var(&o.KillNodes, "kill-nodes", o.KillNodes.Usage("row kill: number of nodes"))
	fs.Var(&o.KillTime, "kill-time", o.KillTime.Usage("row kill: time for which the nodes are observed"))
	fs.DurationVar(&o.Timeout, "timeout", o.Timeout, "time limit for the start of a cluster, and for waiting without progress")
}

// Validate returns the first invalid option as a usage error.
func (o *options) Validate() error {
	for _, name := range o.only() {
		if !slices.Contains(rowNames(), name) {
			return usage.Errorf("--only %q: no such row; choose one of %s", name, strings.Join(rowNames(), ", "))
		}
	}
	switch {
	case o.FloodRate <= 0:
		return usage.Errorf("--flood-rate %g: must be more than 0", o.FloodRate)
	case o.Timeout <= 0:
		return usage.Errorf("--timeout %s: must be more than 0", o.Timeout)
	}
	return nil
}

// bench is a run of the experiment.
type bench struct {
	*experiment.Run
	options *options
	// haproxy reports whether HAProxy is installed.
	haproxy bool
}

// Run implements experiment.Options.
func (o *options) Run(ctx context.Context, run *experiment.Run) error {
	if run.UsesExisting() {
		return usage.Errorf("--name %s: the experiment needs clusters of its own; choose the name of a cluster that does not exist", run.Dir.Name())
	}
	b := &bench{Run: run, options: o, haproxy: true}
	if _, err := findHAProxy(); errors.Is(err, errNoHAProxy) {
		b.haproxy = false
		run.Result.Note("%v.", err)
	}
	if err := b.oneServer(ctx); err != nil {
		return err
	}
	if err := b.threeServers(ctx); err != nil {
		return err
	}
	if slices.Contains(o.only(), killRow) {
		return b.kill(ctx)
	}
	return nil
}

// only returns the names of the selected rows.
func (o *options) only() []string { return namesIn(o.Only.Text) }

// namesIn splits the value of --only.
func namesIn(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}

// selected returns those of the rows that the user selected.
func (o *options) selected(all []row) []row {
	return slices.DeleteFunc(slices.Clone(all), func(r row) bool { return !slices.Contains(o.only(), r.name) })
}

// oneServer measures the rows that need a cluster with one API server.
func (b *bench) oneServer(ctx context.Context) error {
	rows := b.options.selected(oneServerRows)
	if len(rows) == 0 {
		return nil
	}
	cores := b.Result.Machine.Cores
	return b.withLab(ctx, ", with one API server", oneServer(cores), func(ctx context.Context, l *lab) error {
		return l.measure(ctx, rows)
	})
}

// threeServers measures the rows that need a cluster with three API servers.
func (b *bench) threeServers(ctx context.Context) error {
	rows := b.options.selected(threeServersRows)
	if len(rows) == 0 {
		return nil
	}
	settings := clusterdir.DefaultSettings()
	settings.Nodes, settings.Gateway, settings.APIServers = 0, new(false), apiServers
	return b.withLab(ctx, ", with three API servers", settings, func(ctx context.Context, l *lab) error {
		return l.measure(ctx, rows)
	})
}

// measure measures rows on the cluster of the lab.
func (l *lab) measure(ctx context.Context, rows []row) error {
	for _, r := range rows {
		if err := r.measure(l, ctx); err != nil {
			return fmt.Errorf("row %s: %w", r.name, err)
		}
	}
	return nil
}
