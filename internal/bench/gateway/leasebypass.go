package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

var leaseBypass = experiment.Experiment{
	Name:  "lease-bypass",
	Short: "Measure what Lease renewals that bypass kube-apiserver cost it and kube-controller-manager",
	Long: `Renew the Leases of --nodes nodes in the store of a running cluster, as kube-gateway does, so that
kube-apiserver does not see the requests. It still receives each change from the store, and
kube-controller-manager watches all Leases. The table shows the CPU time of each process for a renewal,
at each of --rates and for each way to serve this watch. That of the cluster without renewals is
subtracted.

Variants (--variants):
  cached            kube-apiserver serves the watch from its watch cache, as it does by default
  uncached          kube-apiserver has no watch cache for Leases
  served            the same as cached, and kube-gateway serves a further watch from the store
                    (nodePath.leases.watch). It is k1m that watches: kube-controller-manager stays at the API
                    server, as in the others
  served-uncached   the same, without a watch cache for Leases in kube-apiserver

All variants use the same nodes: the cluster is stopped and started with other settings. Renewals that
are due stop for --duration while the cluster without renewals is measured.`,
	Example: `  k1m bench lease-bypass
  k1m bench lease-bypass --nodes 50000 --rates 5000 --variants cached,uncached
  k1m bench lease-bypass --scale small`,
	New: func() experiment.Options { return defaultBypassOptions() },
}

// longestPause is the time in which every Lease must be renewed again. kube-controller-manager marks a node as
// NotReady after 50 s, its default, which the experiment does not change.
const longestPause = 40 * time.Second

// bypassOptions are the options of the experiment.
type bypassOptions struct {
	Nodes    experiment.Count
	Rates    experiment.Choice
	Variants []string
	Duration experiment.Span
	Timeout  time.Duration
}

func defaultBypassOptions() *bypassOptions {
	return &bypassOptions{
		Nodes: experiment.ByScale(10_000, 100), Rates: experiment.ChoiceByScale("1000,3000,10000", "200,1000"),
		Variants: variantNames()[:3], Duration: experiment.SpanByScale(15*time.Second, 4*time.Second),
		Timeout: 3 * time.Minute,
	}
}

// AddFlags binds the options to flags.
func (o *bypassOptions) AddFlags(fs *pflag.FlagSet) {
	fs.Var(&o.Nodes, "nodes", o.Nodes.Usage("number of nodes, with a Lease each"))
	fs.Var(&o.Rates, "rates", "renewals per second, separated by commas (default by --scale: 1000,3000,10000 at medium)")
	fs.StringSliceVar(&o.Variants, "variants", o.Variants, "how the watch of kube-controller-manager is served, in this order: "+strings.Join(variantNames(), ", "))
	fs.Var(&o.Duration, "duration", o.Duration.Usage("duration of each measurement"))
	fs.DurationVar(&o.Timeout, "timeout", o.Timeout, "time limit for the start of a cluster, and for waiting without progress")
}

// Validate returns the first invalid option as a usage error.
func (o *bypassOptions) Validate() error {
	for i, name := range o.Variants {
		if !slices.Contains(variantNames(), name) {
			return usage.Errorf("--variants %q: no such variant; choose one of %s", name, strings.Join(variantNames(), ", "))
		}
		if slices.Contains(o.Variants[:i], name) {
			return usage.Errorf("--variants: %s is given twice; list each once", name)
		}
	}
	switch {
	case len(o.Variants) == 0:
		return usage.Errorf("--variants: the list is empty; choose one of %s", strings.Join(variantNames(), ", "))
	case o.Timeout <= 0:
		return usage.Errorf("--timeout %s: must be more than 0", o.Timeout)
	case o.Rates.Text == "":
		return nil // follows from the scale
	}
	_, err := o.rates()
	return err
}

// rates returns the rates in ascending order.
func (o *bypassOptions) rates() (rates []int, err error) {
	for _, text := range namesIn(o.Rates.Text) {
		rate, err := strconv.Atoi(text)
		if err != nil || rate < 1 {
			return nil, usage.Errorf("--rates %q: write whole numbers of at least 1, such as 1000,10000", text)
		}
		rates = append(rates, rate)
	}
	if len(rates) == 0 {
		return nil, usage.Errorf("--rates %q: the list is empty; write it like 1000,10000", o.Rates.Text)
	}
	slices.Sort(rates)
	return slices.Compact(rates), nil
}

// checkPause returns a usage error if nodes would become NotReady without a fault, because their Leases are renewed too
// late after the measurement without renewals.
func (o *bypassOptions) checkPause(slowest int) error {
	pause := o.Duration.D + time.Duration(float64(o.Nodes.N)/float64(slowest)*float64(time.Second))
	if pause > longestPause {
		return usage.Errorf("--nodes %d, --rates %d, --duration %s: some Leases would not be renewed for %s; at most %s are possible",
			o.Nodes.N, slowest, o.Duration.D, pause.Round(time.Second), longestPause)
	}
	return nil
}

// bypassRun is a run of the experiment.
type bypassRun struct {
	*bench
	own     *bypassOptions
	rates   []int
	table   *experiment.Table
	figures map[string][]experiment.Figure // by variant
}

// Run implements experiment.Options.
func (o *bypassOptions) Run(ctx context.Context, run *experiment.Run) (err error) {
	if run.UsesExisting() {
		return usage.Errorf("--name %s: the experiment needs clusters of its own; choose the name of a cluster that does not exist", run.Dir.Name())
	}
	rates, err := o.rates()
	if err == nil {
		err = o.checkPause(rates[0])
	}
	if err != nil {
		return err
	}
	r := &bypassRun{bench: &bench{Run: run, options: &options{Timeout: o.Timeout}}, own: o, rates: rates, figures: map[string][]experiment.Figure{}}
	r.table = run.Result.Table(fmt.Sprintf("Lease renewals that bypass kube-apiserver, %d nodes", o.Nodes.N), bypassColumns()...)
	cluster, err := r.createNodes(ctx)
	defer func() {
		if cluster != nil {
			err = errors.Join(err, run.Close(cluster, false))
		}
	}()
	for _, v := range variants {
		if err != nil || !slices.Contains(o.Variants, v.name) {
			continue
		}
		if cluster, err = r.start(ctx, cluster, v); err == nil {
			err = r.measureVariant(ctx, cluster, v)
		}
		if err != nil {
			err = fmt.Errorf("variant %s: %w", v.name, err)
		}
	}
	if err == nil {
		r.summarize()
	}
	return err
}

// summarize compares the variants with the default of kube-apiserver, and appends notes.
func (r *bypassRun) summarize() {
	for _, name := range r.own.Variants {
		if name != cachedVariant {
			r.Result.Compare(name, cachedVariant, r.figures[name], r.figures[cachedVariant])
		}
	}
	r.Result.Note("CPU for a renewal is that of a process while Leases are renewed, without that of the idle cluster of the same variant (the row with 0 renewals/s).")
	r.Result.Note("etcd-bench renews the Leases in the store. kwok simulates none of the nodes: it would renew their Leases through kube-apiserver, and it would watch all Leases, which is a second watch that a cluster with kubelets does not have. So kwok runs with --node-lease-duration-seconds=0, and the nodes and Leases are created as kubelets register them.")
	r.Result.Note("In the variants served, kube-controller-manager watches at the API server as in the others, and k1m watches through kube-gateway in its place. So the store has a further watch of Leases: that of kube-gateway.")
	r.Result.Note("Nodes that are NotReady are those that kube-controller-manager counts (node_collector_unhealthy_nodes_in_zone), with its default --node-monitor-grace-period of 50 s.")
}
