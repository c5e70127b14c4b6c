// Package ladder contains the experiment `k1m bench ladder`: clusters of more and more nodes, with a real control
// plane, real kubectl and nodes that send heartbeats.
//
// rungs.go has the rungs. A [step] is the cluster of a rung while it runs: step.go starts it, hold.go holds it and
// samples heartbeats, leases.go counts Leases in the store, readiness.go counts nodes that are Ready, and failures.go,
// kubectl.go and workload.go do what users do. limit.go says what gives first, judge.go has the verdicts. climb.go looks
// for the largest number of nodes with connections of their own.
package ladder

import (
	"context"
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
func Experiments() []experiment.Experiment { return []experiment.Experiment{ladder} }

var ladder = experiment.Experiment{
	Name:  "ladder",
	Short: "Hold clusters of 20,000 to 1,000,000 nodes that send heartbeats, and judge them",
	Long: `Start clusters with more and more nodes, and hold each of them for --hold (10 minutes). The control
plane is real, kubectl is real, and node-sim sends the heartbeats of the nodes. Nodes are written directly
into the store, and the settings are those of ` + "`k1m up`" + ` for the number of nodes (its profile); the result
lists them with their reasons.

Rungs (--rung):
  20000    20,000 nodes, a heartbeat every 10 s, all controllers, then 20,000 pods
  100000   100,000 nodes, a heartbeat every 10 s, then 50,000 pods
  wire     nodes with a connection, a certificate and six watches each, as kubelets have: as many as
           hold, in steps up to 100,000
  300000   300,000 nodes, a heartbeat every 40 s
  1000000  1,000,000 nodes, a heartbeat every 200 s, then 100,000 pods

On each rung:
  1. The cluster starts, all nodes renew their Leases, and kube-controller-manager's garbage collector has
     read the owners of all Leases.
  2. It is held. Heartbeats are counted where they are sent (node-sim), and where they arrive: the store
     counts the writes of each Lease, and --samples times all Leases are read to count those that were
     renewed within the interval and 10 s.
  3. kubectl get node NAME; kubectl get nodes --chunk-size=500.
  4. A Deployment of --replicas pods is rolled out, and --pods further pods are created.
  5. --stopped nodes stop, become NotReady, start again and become Ready.

The result has the time of each part, CPU and memory of each process, also for a node, and what gives
first. The run fails if a rung misses an objective that it must meet: all nodes stay Ready for the time,
heartbeats arrive, kubectl answers, the Deployment is rolled out, and failed nodes are noticed and come
back. Aims are shown only. A rung that fails does not keep the others from running.

With --without scheduler, there are no pods; with --without kube-controller-manager, also no failures of nodes.

With a scale below medium, the default is the first rung, with so much fewer nodes and pods.`,
	Example: `  k1m bench ladder --rung 20000
  k1m bench ladder --rung 100000 --pods 0
  k1m bench ladder --rung 300000 --interval 10s
  k1m bench ladder --rung 1000000 --without scheduler --keep
  k1m bench ladder --rung 20000 --nodes 500 --hold 30s      # a quick try`,
	New: func() experiment.Options { return defaultOptions() },
}

// options are the options of the experiment.
type options struct {
	Rungs             experiment.Choice
	Nodes             int // 0 for the number of the rung
	Hold, StepHold    experiment.Span
	Interval, Grace   time.Duration // 0 for those of the profile
	Pods              int           // ofRung for the number of the rung
	Replicas, Stopped experiment.Count
	Samples, Kubectl  int
	Scheduler         string   // "" for the one of the profile
	Without           []string // components that do not run
	Timeout           time.Duration
	Keep              bool
}

// ofRung is the value of --pods that means the number of the rung.
const ofRung = -1

func defaultOptions() *options {
	return &options{
		Rungs: experiment.ChoiceByScale(strings.Join(rungNames(), ","), rungs[0].name), Pods: ofRung,
		Hold: experiment.SpanByScale(10*time.Minute, 20*time.Second), StepHold: experiment.SpanByScale(2*time.Minute, 20*time.Second),
		Replicas: experiment.ByScale(1000, 10), Stopped: experiment.ByScale(10, 2), Samples: 5, Kubectl: 10, Timeout: 10 * time.Minute,
	}
}

// AddFlags binds the options to flags.
func (o *options) AddFlags(fs *pflag.FlagSet) {
	fs.Var(&o.Rungs, "rung", "rungs, separated by commas: "+strings.Join(rungNames(), ", ")+" (default all; below medium scale the first)")
	fs.IntVar(&o.Nodes, "nodes", o.Nodes, "number of nodes in place of that of the rung; 0 for that of the rung")
	fs.Var(&o.Hold, "hold", o.Hold.Usage("how long a cluster is held"))
	fs.Var(&o.StepHold, "step-hold", o.StepHold.Usage("rung wire: how long each step below the largest is held"))
	fs.DurationVar(&o.Interval, "interval", o.Interval, "time between two heartbeats of a node; 0 for that of the rung")
	fs.DurationVar(&o.Grace, "grace", o.Grace, "time without a heartbeat after which a node becomes NotReady (node-monitor-grace-period), with a pass over all nodes in each quarter of it; 0 for that of the profile")
	fs.IntVar(&o.Pods, "pods", o.Pods, "number of pods to create in the end; -1 for that of the rung, 0 for none")
	fs.Var(&o.Replicas, "replicas", o.Replicas.Usage("number of pods of the Deployment"))
	fs.Var(&o.Stopped, "stopped", o.Stopped.Usage("number of nodes that stop"))
	fs.IntVar(&o.Samples, "samples", o.Samples, "how many times all Leases are read while the cluster is held")
	fs.IntVar(&o.Kubectl, "kubectl", o.Kubectl, "how many times kubectl gets a node")
	fs.StringVar(&o.Scheduler, "scheduler", o.Scheduler, "kube-scheduler|dist-scheduler (default: that of the profile)")
	fs.StringSliceVar(&o.Without, "without", o.Without, "leave out kube-controller-manager or scheduler, as k1m up --without does; what needs them is not measured")
	fs.DurationVar(&o.Timeout, "timeout", o.Timeout, "time limit for the start of a cluster, if that of the profile is not longer, and for waiting without progress")
	fs.BoolVar(&o.Keep, "keep", o.Keep, "keep the last cluster, also if it fails")
}

// Validate returns the first invalid option as a usage error.
func (o *options) Validate() error {
	for _, name := range o.names() {
		if !slices.Contains(rungNames(), name) {
			return usage.Errorf("--rung %q: no such rung; choose one of %s", name, strings.Join(rungNames(), ", "))
		}
	}
	switch {
	case o.Nodes < 0:
		return usage.Errorf("--nodes %d: cannot be negative", o.Nodes)
	case o.Interval < 0 || o.Interval > 0 && o.Interval < time.Second:
		return usage.Errorf("--interval %s: choose 1s or more", o.Interval)
	case o.Grace < 0:
		return usage.Errorf("--grace %s: cannot be negative", o.Grace)
	case o.Pods < ofRung:
		return usage.Errorf("--pods %d: choose 0 or more, or -1 for the number of the rung", o.Pods)
	case o.Samples < 1:
		return usage.Errorf("--samples %d: choose at least 1", o.Samples)
	case o.Kubectl < 1:
		return usage.Errorf("--kubectl %d: choose at least 1", o.Kubectl)
	case o.Timeout <= 0:
		return usage.Errorf("--timeout %s: must be more than 0", o.Timeout)
	case slices.ContainsFunc(o.Without, func(name string) bool { return name != clusterdir.ControllerManager && name != clusterdir.AnyScheduler }):
		return usage.Errorf("--without %s: choose %s or %s", strings.Join(o.Without, ","), clusterdir.ControllerManager, clusterdir.AnyScheduler)
	case !slices.Contains([]string{"", clusterdir.SchedulerKube, clusterdir.SchedulerDist}, o.Scheduler):
		return usage.Errorf("--scheduler %q: no such scheduler; choose kube-scheduler or dist-scheduler", o.Scheduler)
	}
	return nil
}

// names returns the names of the selected rungs.
func (o *options) names() []string {
	return strings.FieldsFunc(o.Rungs.Text, func(r rune) bool { return r == ',' || r == ' ' })
}

// run is a run of the experiment.
type run struct {
	*experiment.Run
	options *options
	tables  tables
}

// tables are the tables of the result. Each has a row or several for each cluster.
type tables struct{ starts, holds, processes, users, limits, tuning *experiment.Table }

// Run implements experiment.Options.
func (o *options) Run(ctx context.Context, r *experiment.Run) error {
	if r.UsesExisting() {
		return usage.Errorf("--name %s: the experiment needs clusters of its own; choose the name of a cluster that does not exist", r.Dir.Name())
	}
	l := &run{Run: r, options: o, tables: newTables(r.Result)}
	names := o.names()
	for i, g := range rungs {
		if !slices.Contains(names, g.name) {
			continue
		}
		isLast := !slices.ContainsFunc(rungs[i+1:], func(later rung) bool { return slices.Contains(names, later.name) })
		keep := o.Keep && isLast
		// A rung that climbs needs the name for the next cluster.
		r.KeepFailed = keep && !g.climbs
		if err := l.climbOrMeasure(ctx, g.sized(o, r.Scale.Factor), keep); err != nil {
			return fmt.Errorf("rung %s: %w", g.name, err)
		}
	}
	return nil
}

func (r *run) climbOrMeasure(ctx context.Context, g rung, keep bool) error {
	if g.climbs {
		return r.climb(ctx, g, keep)
	}
	_, err := r.measure(ctx, g, keep)
	return err
}

func newTables(r *experiment.Result) tables {
	return tables{
		starts: r.Table("Start", "rung", "nodes", "nodes seeded, control plane ready, s", "all nodes started, s", "all nodes renew, s", "owners read by the garbage collector, s", "sum, s"),
		holds: r.Table("Heartbeats while the cluster is held", "rung", "nodes", "interval, s", "held, s", "sent, /s", "answered with success, /s",
			"arrived in the store, /s", "arrived, % of due", "served by kube-gateway, %", "p50, ms", "p99, ms",
			"Leases renewed in time, least sample", "nodes Ready at the end", "nodes that became NotReady"),
		processes: r.Table("Processes while the cluster is held", "rung", "process", "cores", "CPU for a heartbeat, µs", "CPU for a node in a second, µs",
			"memory, MiB", "peak, MiB", "memory for a node, bytes"),
		users: r.Table("What users see", "rung", "kubectl get node: median, ms", "most, ms", "kubectl get nodes: s", "its memory, MiB",
			"Deployment: pods", "rolled out, s", "further pods running", "created and running, /s",
			"stopped nodes", "NotReady, median, s", "most, s", "Ready again, median, s", "most, s"),
		limits: r.Table("What gives first", "rung", "limit", "used, %", "measured"),
		tuning: r.Table("Settings of the profiles, and why", "rung", "setting", "reason"),
	}
}
