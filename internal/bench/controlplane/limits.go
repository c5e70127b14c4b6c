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
	"github.com/k8s-1m/k8s-1m/internal/util/machine"
	"github.com/k8s-1m/k8s-1m/internal/util/number"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

const (
	// leaseInterval is the interval at which a node renews its Lease.
	leaseInterval = 10 * time.Second
	// A step exceeds the CPU limit if less than the fraction leastIdle of the cores is idle while the
	// cluster uses more than the fraction leastOwn of them.
	leastIdle = 0.05
	leastOwn  = 0.5
	// A step exceeds the memory limit if less than this fraction of the memory is available.
	leastAvailable = 0.10
	// Nodes renew their Leases late if less than this fraction of the expected renewals happens.
	leastRenewed = 0.9

	// memoryExceeded starts the description of an exceeded memory limit.
	memoryExceeded = "memory"
)

var limits = experiment.Experiment{
	Name:  "limits",
	Short: "Increase the number of nodes until a limit is exceeded: memory, CPU, Leases or an objective",
	Long: `Increase the number of nodes (1,000, 2,000, 5,000, 10,000, …) until a limit is exceeded:
memory (less than 10 % available), CPU (less than 5 % idle while the cluster uses more than
half of all cores), Leases (less than 90 % of the expected renewals), or one of the Kubernetes
objectives. Nodes that do not become ready also count as a limit.

At each step the nodes are idle for --hold, to measure the cost of a node. Then --sample pods
are started, to measure the cost of an operation. After a limit was exceeded, the experiment
searches between that step and the previous one. The search ends when the smallest number of
nodes that exceeds a limit is at most a quarter larger than the largest number that does not.`,
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
	fs.Lookup("nodes").Usage = o.Nodes.Usage("largest number of nodes to try")
	fs.Var(&o.First, "first", o.First.Usage("number of nodes in the first step"))
	fs.Var(&o.Sample, "sample", o.Sample.Usage("number of pods to start at each step"))
	fs.Var(&o.Narrow, "narrow", o.Narrow.Usage("maximum number of search steps after a limit was exceeded"))
	fs.Var(&o.Hold, "hold", o.Hold.Usage("how long nodes are idle at each step"))
}

// Validate returns the first invalid option as a usage error.
func (o *limitsOptions) Validate() error {
	if o.First.N > 0 && o.Nodes.N > 0 && o.First.N > o.Nodes.N {
		return usage.Errorf("--first %d: more than --nodes %d; choose fewer", o.First.N, o.Nodes.N)
	}
	if o.Hold.D > 0 && o.Hold.D < leaseInterval {
		return usage.Errorf("--hold %s: choose at least %s, the interval at which nodes renew their Leases",
			o.Hold.D, leaseInterval)
	}
	return o.clusters.Validate()
}

// limitTables are the tables of the experiment.
type limitTables struct{ steps, nodes, operations, exceeded *experiment.Table }

// Run implements experiment.Options.
func (o *limitsOptions) Run(ctx context.Context, run *experiment.Run) error {
	if run.UsesExisting() {
		return usage.Errorf("--name %s: limits fills a cluster until a limit is exceeded, so it cannot use an existing cluster; omit --name", run.Dir.Name())
	}
	r := run.Result
	tables := limitTables{
		steps: r.Table("Steps", "store", "nodes", "created, /s", "Leases, /s", "renewals, % of expected", "cluster's CPU, %", "idle, %", "memory available, %",
			"mutating p99, s", "startup p99, s", "limit exceeded"),
		nodes: r.Table("Cost of an idle node", "store", "nodes", "CPU, µs/s: kube-apiserver", "store", "node simulator", "kube-controller-manager", "scheduler",
			"memory, KiB: kube-apiserver", "store", "node simulator", "kube-controller-manager", "scheduler"),
		operations: r.Table("Cost per operation", "store", "nodes", "CPU per Lease update, µs: kube-apiserver", "store", "node simulator",
			"CPU per node created, µs: kube-apiserver", "store", "CPU per pod, µs: kube-apiserver", "store", "scheduler"),
		exceeded: r.Table("First limit exceeded", "store", "nodes within all limits", "exceeded at", "limit"),
	}
	return o.each(ctx, run, func(ctx context.Context, t *storeRun) error {
		if err := t.prepareEmpty(ctx); err != nil {
			return err
		}
		return o.climb(ctx, t, tables)
	})
}

// climb finds the largest number of nodes on one store.
func (o *limitsOptions) climb(ctx context.Context, t *storeRun, tables limitTables) error {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	c := &climb{storeRun: t, options: o, tables: tables, pods: t.watchPods(watching, "")}
	var err error
	if c.base, _, err = c.measureIdleNodes(ctx, "empty cluster"); err != nil {
		return err
	}
	c.idle = c.base
	found, err := c.run(ctx)
	if found.exceededAt > 0 {
		tables.exceeded.Add(t.store, found.passed, found.exceededAt, strings.Join(found.exceeded, "; "))
	} else if err == nil {
		tables.exceeded.Add(t.store, found.passed, none, "no limit up to --nodes")
	}
	t.figure("nodes within all limits", "", float64(found.passed), true)
	return err
}

// prepareEmpty prepares a cluster without nodes, which cannot run warm-up pods: it creates the namespace
// and waits until the control plane is idle.
func (t *storeRun) prepareEmpty(ctx context.Context) error {
	if err := t.Clients.EnsureNamespace(ctx, namespace); err != nil {
		return err
	}
	return t.AwaitQuiet(ctx)
}

// extraCPU returns the additional CPU time of a role per operation, in microseconds: its usage in a window
// with the operations, minus the usage that a window of the same length without them would have.
func extraCPU(with, without experiment.Measured, role string, operations int) float64 {
	if operations == 0 {
		return 0
	}
	return 1e6 * (with.Cores(role) - without.Cores(role)) * with.Seconds / float64(operations)
}

// costs adds a table row with the CPU and the memory per idle node: the usage of the cluster with these
// nodes minus the usage of the empty cluster, divided by the number of nodes.
func (c *climb) costs(nodes int) {
	roles := []string{apiServer, component.Store, c.simulator(), component.ControllerManager, scheduler}
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

// machineShares are fractions of the machine's resources, 0 to 1.
type machineShares struct {
	// idle is the idle fraction of all cores. available is the available fraction of the memory.
	idle, available float64
	// own is the fraction of all cores that the cluster and this process use.
	own float64
}

// measureIdleNodes measures the idle cluster for --hold, and the free resources of the machine meanwhile.
func (c *climb) measureIdleNodes(ctx context.Context, what string) (experiment.Measured, machineShares, error) {
	before, err := machine.ReadState()
	if err != nil {
		return experiment.Measured{}, machineShares{}, err
	}
	window := c.Sampler.Begin(ctx)
	if err := c.wait(ctx, what, c.options.Hold.D); err != nil {
		return experiment.Measured{}, machineShares{}, err
	}
	m := window.End(ctx)
	after, err := machine.ReadState()
	own := 0.0
	for role := range m.CPU {
		own += m.Cores(role)
	}
	return m, machineShares{after.IdleSince(before), after.AvailableShare(), own / float64(c.Result.Machine.Cores)}, err
}

// measureIdle measures the cluster for the duration d without load.
func (t *storeRun) measureIdle(ctx context.Context, what string, d time.Duration) (experiment.Measured, error) {
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

// measureStartup starts the sample pods, measures their startup, and deletes them.
func (c *climb) measureStartup(ctx context.Context, nodes int) (*experiment.Latencies, error) {
	const rate = 10
	prefix := fmt.Sprintf("at-%d-", nodes)
	c.pods.measureOnly(prefix)
	created, err := c.createPods(ctx, c.pods, prefix, c.options.Sample.N, 64, rate)
	if err != nil {
		return nil, err
	}
	err = c.awaitRunning(ctx, c.pods, int(created.Latencies.Count()))
	startup, _ := c.pods.measured()
	_, deletion := c.deletePods(ctx, prefix, c.options.Sample.N, 64)
	if err = errors.Join(err, deletion); err != nil {
		return startup, err
	}
	return startup, c.awaitGone(ctx, c.pods, 0)
}

// exceededLimits describes the limits that were exceeded. renewed is the number of renewed Leases as a
// fraction of the expected number.
func exceededLimits(renewed float64, shares machineShares, verdicts []experiment.Verdict) (exceeded []string) {
	if shares.available < leastAvailable {
		exceeded = append(exceeded, fmt.Sprintf(memoryExceeded+": %.0f %% available", 100*shares.available))
	}
	if shares.idle < leastIdle && shares.own > leastOwn {
		exceeded = append(exceeded, fmt.Sprintf("CPU: %.0f %% idle", 100*shares.idle))
	}
	if renewed < leastRenewed {
		exceeded = append(exceeded, fmt.Sprintf("Leases: %.0f %% renewed in time", 100*renewed))
	}
	for _, v := range verdicts {
		if !v.Met && v.Operations > 0 {
			exceeded = append(exceeded, fmt.Sprintf("objective: %s was %s s", v.Name, number.Text(v.Measured)))
		}
	}
	return exceeded
}

// countCalls returns the number of calls with this verb and resource.
func countCalls(calls []experiment.Call, verb, resource string) (count int64) {
	for _, c := range calls {
		if c.Verb == verb && c.Resource == resource {
			count += c.Count
		}
	}
	return count
}

// climbSteps returns the numbers first × 10ⁿ × 1, 2 and 5 that are below last, and last.
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
