package controlplane

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/util/number"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

const (
	// A node renews its Lease so often.
	leaseInterval = 10 * time.Second
	// What is left of the machine when it counts as used up.
	leastIdle      = 0.05
	leastAvailable = 0.10
	// With less of the cores than this it is not the cluster that uses them up.
	leastOwn = 0.5
	// Fewer renewals than this part of those due mean that nodes fall behind.
	leastRenewed = 0.9

	memoryGave = "memory"
)

var limits = experiment.Experiment{
	Name:  "limits",
	Short: "Increase the number of nodes until memory, CPU or an objective is exhausted",
	Long: `Increase the number of nodes (1,000, 2,000, 5,000, 10,000, …) until a limit is exceeded:
memory (less than 10 % available), CPU (less than 5 % idle while the cluster uses at least
half of it), nodes that renew their Leases late or are not ready, or one of the Kubernetes
objectives. At each step the nodes are idle for --hold, which gives the cost of a node, and
then --sample pods are started, which gives the cost of an operation. After a limit was
exceeded, nodes are removed to search between that step and the previous one, until the two
differ by less than a quarter.`,
	Example: `  k1m bench limits
  k1m bench limits --first 10000 --nodes 1000000 --stores mem_etcd`,
	New: func() experiment.Options {
		o := &limitsOptions{
			clusters: defaultClusters(experiment.ByScale(50_000, 200)), First: experiment.ByScale(1000, 50),
			Hold: experiment.SpanByScale(20*time.Second, leaseInterval), Sample: experiment.ByScale(100, 10),
			Narrow: experiment.ByScale(3, 0),
		}
		o.Stores, o.zeroNodes = []string{clusterdir.StoreMemEtcd}, true
		return o
	},
}

type limitsOptions struct {
	clusters
	First  experiment.Count
	Sample experiment.Count
	Hold   experiment.Span
	Narrow experiment.Count
}

// AddFlags binds the options to flags.
func (o *limitsOptions) AddFlags(fs *pflag.FlagSet) {
	o.clusters.AddFlags(fs)
	fs.Lookup("nodes").Usage = o.Nodes.Usage("nodes at most, if nothing gives before")
	fs.Var(&o.First, "first", o.First.Usage("nodes of the first step"))
	fs.Var(&o.Sample, "sample", o.Sample.Usage("pods that are started at each step"))
	fs.Var(&o.Narrow, "narrow", o.Narrow.Usage("steps between what held and what gave, at most"))
	fs.Var(&o.Hold, "hold", o.Hold.Usage("how long nodes are idle at each step"))
}

// Validate reports the first option that cannot be.
func (o *limitsOptions) Validate() error {
	if o.First.N > 0 && o.Nodes.N > 0 && o.First.N > o.Nodes.N {
		return usage.Errorf("--first %d: more than --nodes %d; choose fewer", o.First.N, o.Nodes.N)
	}
	if o.Hold.D > 0 && o.Hold.D < leaseInterval {
		return usage.Errorf("--hold %s: nodes renew their Leases every %s; choose that or more", o.Hold.D, leaseInterval)
	}
	return o.clusters.Validate()
}

// limitTables are what the experiment fills.
type limitTables struct{ steps, nodes, operations, gave *experiment.Table }

// Run is the experiment.
func (o *limitsOptions) Run(ctx context.Context, run *experiment.Run) error {
	if run.UsesExisting() {
		return usage.Errorf("--name %s: limits fills a cluster until it gives, so it takes none that runs already; leave --name out", run.Dir.Name())
	}
	r := run.Result
	tables := limitTables{
		steps: r.Table("Steps", "store", "nodes", "created, /s", "Leases, /s", "of expected, %", "k1m's CPU, %", "idle, %", "memory available, %",
			"mutating p99, s", "startup p99, s", "limit exceeded"),
		nodes: r.Table("Cost of an idle node", "store", "nodes", "CPU, µs/s: kube-apiserver", "store", "kwok", "kube-controller-manager", "scheduler",
			"memory, KiB: kube-apiserver", "store", "kwok", "kube-controller-manager", "scheduler"),
		operations: r.Table("Cost per operation", "store", "nodes", "CPU per Lease update, µs: kube-apiserver", "store", "kwok",
			"CPU per node created, µs: kube-apiserver", "store", "CPU per pod, µs: kube-apiserver", "store", "scheduler"),
		gave: r.Table("First limit exceeded", "store", "nodes within all limits", "exceeded at", "limit"),
	}
	return o.each(ctx, run, func(ctx context.Context, t *turn) error {
		if err := t.prepareEmpty(ctx); err != nil {
			return err
		}
		return o.climb(ctx, t, tables)
	})
}

// climb finds out what a cluster on one store carries.
func (o *limitsOptions) climb(ctx context.Context, t *turn, tables limitTables) error {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	c := &climb{turn: t, options: o, tables: tables, pods: t.watchPods(watching, "")}
	var err error
	if c.base, _, err = c.hold(ctx, "empty cluster"); err != nil {
		return err
	}
	c.idle = c.base
	found, err := c.run(ctx)
	if found.gaveAt > 0 {
		tables.gave.Add(t.store, found.held, found.gaveAt, strings.Join(found.gave, "; "))
	} else if err == nil {
		tables.gave.Add(t.store, found.held, none, "nothing up to --nodes")
	}
	t.figure("nodes within all limits", "", float64(found.held), true)
	return err
}

// prepareEmpty makes the namespace; without nodes there is nothing to warm up with.
func (t *turn) prepareEmpty(ctx context.Context) error {
	if err := t.Clients.EnsureNamespace(ctx, namespace); err != nil {
		return err
	}
	return t.AwaitQuiet(ctx)
}

// beyond is the CPU of an operation, in microseconds, beyond what the role takes without.
func beyond(with, without experiment.Measured, role string, operations int) float64 {
	if operations == 0 {
		return 0
	}
	return 1e6 * (with.Cores(role) - without.Cores(role)) * with.Seconds / float64(operations)
}

// costs of a node: CPU and memory while nothing happens, beyond those of an empty cluster.
func (c *climb) costs(nodes int) {
	roles := []string{apiServer, component.Store, component.Kwok, component.ControllerManager, scheduler}
	row := []any{c.store, nodes}
	add := func(plot, unit, role string, perNode float64) {
		if perNode < 0 {
			row = append(row, none)
		} else {
			row = append(row, perNode)
			c.Result.Line(experiment.Series{Plot: plot + on(c.store), Name: role, X: "nodes", Unit: unit, LogX: true}, float64(nodes), perNode)
		}
	}
	for _, role := range roles {
		add("CPU per idle node", "µs/s", role, 1e6*(c.idle.Cores(role)-c.base.Cores(role))/float64(nodes))
	}
	for _, role := range roles {
		add("memory per idle node", "KiB", role, float64(c.idle.Resident[role]-c.base.Resident[role])/1024/float64(nodes))
	}
	c.tables.nodes.Add(row...)
}

// freeShares are parts of the machine, 0 to 1.
type freeShares struct {
	idle, available float64
	// own is what the cluster and its load have of all cores.
	own float64
}

// hold measures a cluster that has nothing to do.
func (c *climb) hold(ctx context.Context, what string) (experiment.Measured, freeShares, error) {
	before, err := readMachine()
	if err != nil {
		return experiment.Measured{}, freeShares{}, err
	}
	window := c.Sampler.Begin(ctx)
	if err := c.wait(ctx, what, c.options.Hold.D); err != nil {
		return experiment.Measured{}, freeShares{}, err
	}
	m := window.End(ctx)
	after, err := readMachine()
	own := 0.0
	for role := range m.CPU {
		own += m.Cores(role)
	}
	return m, freeShares{after.idleSince(before), after.availableShare(), own / float64(c.Result.Machine.Cores)}, err
}

// rest measures for so long while nothing happens.
func (t *turn) rest(ctx context.Context, what string, d time.Duration) (experiment.Measured, error) {
	task := t.Display.Task(what, 0)
	task.Say("for " + d.String())
	window := t.Sampler.Begin(ctx)
	select {
	case <-ctx.Done():
		task.Interrupt()
		return experiment.Measured{}, ctx.Err()
	case <-time.After(d):
	}
	m := window.End(ctx)
	task.Done("done")
	return m, nil
}

// start measures the startup of some pods, and removes them.
func (c *climb) start(ctx context.Context, nodes int) (*experiment.Latencies, error) {
	const rate = 10
	prefix := fmt.Sprintf("at-%d-", nodes)
	c.pods.restart(prefix)
	created, err := c.createPods(ctx, c.pods, prefix, c.options.Sample.N, 64, rate)
	if err != nil {
		return nil, err
	}
	err = c.awaitRunning(ctx, c.pods, int(created.Latencies.Count()))
	theirs, _ := c.pods.measured()
	_, deleting := c.deletePods(ctx, prefix, c.options.Sample.N, 64)
	if err = errors.Join(err, deleting); err != nil {
		return theirs, err
	}
	return theirs, c.awaitGone(ctx, c.pods, 0)
}

// whatGave names all limits that were passed.
func whatGave(renewed float64, free freeShares, verdicts []experiment.Verdict) (gave []string) {
	if free.available < leastAvailable {
		gave = append(gave, fmt.Sprintf(memoryGave+": %.0f %% available", 100*free.available))
	}
	if free.idle < leastIdle && free.own > leastOwn {
		gave = append(gave, fmt.Sprintf("CPU: %.0f %% idle", 100*free.idle))
	}
	if renewed < leastRenewed {
		gave = append(gave, fmt.Sprintf("Leases: %.0f %% of those due were renewed", 100*renewed))
	}
	for _, v := range verdicts {
		if !v.Met && v.Of > 0 {
			gave = append(gave, fmt.Sprintf("objective: %s was %s s", v.Name, number.Text(v.Measured)))
		}
	}
	return gave
}

func countCalls(calls []experiment.Call, verb, resource string) (count int64) {
	for _, c := range calls {
		if c.Verb == verb && c.Resource == resource {
			count += c.Count
		}
	}
	return count
}

// climbSteps are 1, 2 and 5 times powers of ten of the first, and the last.
func climbSteps(first, last int) (all []int) {
	for unit := first; unit < last; unit *= 10 {
		for _, times := range []int{1, 2, 5} {
			if unit*times < last {
				all = append(all, unit*times)
			}
		}
	}
	return append(all, last)
}
