// Package realcluster measures schedulers in clusters that k1m creates. `k1m bench schedule` measures one
// scheduler after the other, with the same nodes and pods. `k1m bench watch-or-webhook` measures
// dist-scheduler with a watch or a webhook as its source of pods (files intake_*.go). Package inmemory
// measures the same schedulers without a cluster.
package realcluster

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

const (
	defaultTimeout = 2 * time.Minute
	maxPods        = 10_000_000
)

// Options are the options of one run.
type Options struct {
	Schedulers []string
	// Replicas are the numbers of dist-scheduler replicas to measure. Measurements with more than one
	// replica also have this number of Relays.
	Replicas []int
	Relays   int
	// Cluster contains the nodes, zones, store and CPUs of the cluster, and the arguments and environment
	// of the schedulers.
	Cluster clusterdir.Settings
	Pods    int
	// Samples is the number of measurements of each contender. The result is the sample with the
	// median CPU.
	Samples int
	Shape   bulk.PodShape
	// Timeout limits the time until the cluster is ready, and the time without a further bound pod.
	Timeout time.Duration
	Keep    bool
}

// DefaultOptions returns the default options. Such a run takes 1 to 2 minutes.
func DefaultOptions() Options {
	o := Options{
		Schedulers: []string{clusterdir.SchedulerDist, clusterdir.SchedulerKube}, Replicas: []int{1}, Cluster: clusterdir.DefaultSettings(),
		Pods: 2000, Samples: 1, Shape: bulk.DefaultPodShape(), Timeout: defaultTimeout,
	}
	o.Cluster.Nodes = 1000
	o.Shape.Namespace = "k1m-bench"
	return o
}

// AddFlags binds the options to flags.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.Schedulers, "schedulers", o.Schedulers, "schedulers to measure, in this order")
	fs.IntSliceVar(&o.Replicas, "scheduler-replicas", o.Replicas, "numbers of dist-scheduler replicas to measure")
	fs.IntVar(&o.Relays, "scheduler-relays", o.Relays,
		"number of additional replicas that own no nodes, if there are two or more replicas")
	fs.StringArrayVar(&o.Cluster.SchedulerArgs, "scheduler-arg", o.Cluster.SchedulerArgs,
		"additional scheduler flag, key=value; repeatable")
	fs.StringArrayVar(&o.Cluster.SchedulerEnv, "scheduler-env", o.Cluster.SchedulerEnv,
		"environment variable of the schedulers, KEY=VALUE; repeatable")
	fs.StringArrayVar(&o.Cluster.CPUs, "cpus", o.Cluster.CPUs,
		"CPUs of a process or of all processes of a program, NAME=LIST, such as scheduler=0; repeatable (default: "+
			"all CPUs)")
	fs.IntVar(&o.Cluster.Nodes, "nodes", o.Cluster.Nodes, "number of nodes")
	fs.IntVar(&o.Cluster.Zones, "zones", o.Cluster.Zones, "number of zones; nodes are distributed evenly")
	fs.StringVar(&o.Cluster.NodeSimulator, "node-simulator", o.Cluster.NodeSimulator,
		"program that simulates the nodes: kwok|node-sim; with node-sim, nodes are written into the store, and many nodes have the settings of "+
			"`k1m up` for their number (its profile)")
	fs.StringVar(&o.Cluster.Store, "store", o.Cluster.Store, "store of the cluster: mem_etcd|etcd")
	fs.IntVar(&o.Pods, "pods", o.Pods, "number of pods for each scheduler")
	fs.IntVar(&o.Samples, "samples", o.Samples,
		"number of measurements of each scheduler; the result is the one with the median CPU time")
	fs.StringVar(&o.Shape.Template, "template", o.Shape.Template,
		"file with a Pod that is the template of all pods (default: a Pod with one small container)")
	fs.DurationVar(&o.Timeout, "timeout", o.Timeout,
		"time limit for the start of the cluster, and for waiting without a further bound pod")
	fs.BoolVar(&o.Keep, "keep", o.Keep, "do not remove the cluster of the last scheduler")
}

// Validate returns the first invalid option as a usage error.
func (o *Options) Validate() error {
	seen := map[string]bool{}
	for _, name := range o.Schedulers {
		if name != clusterdir.SchedulerDist && name != clusterdir.SchedulerKube {
			return usage.Errorf("--schedulers %q: no such scheduler; choose dist-scheduler, kube-scheduler or both",
				name)
		}
		if seen[name] {
			return usage.Errorf("--schedulers %s: %s is given twice; list each once",
				strings.Join(o.Schedulers, ","), name)
		}
		seen[name] = true
	}
	switch {
	case len(o.Schedulers) == 0:
		return usage.Errorf("--schedulers: the list is empty; choose dist-scheduler, kube-scheduler or both")
	case o.Cluster.Nodes < 1:
		return usage.Errorf("--nodes %d: choose 1 or more", o.Cluster.Nodes)
	case o.Pods < 1 || o.Pods > maxPods:
		return usage.Errorf("--pods %d: choose 1 to %d", o.Pods, maxPods)
	case o.Pods+warmUpPods > o.Cluster.Nodes*bulk.DefaultNodeShape().Pods:
		return usage.Errorf("--pods %d: %d nodes have room for %d pods; use fewer pods or more nodes",
			o.Pods, o.Cluster.Nodes, o.Cluster.Nodes*bulk.DefaultNodeShape().Pods-warmUpPods)
	case o.Samples < 1:
		return usage.Errorf("--samples %d: choose 1 or more", o.Samples)
	case o.Timeout <= 0:
		return usage.Errorf("--timeout %s: must be more than 0", o.Timeout)
	}
	return o.validateContenders()
}

func (o *Options) validateContenders() error {
	if len(o.Replicas) == 0 {
		return usage.Errorf("--scheduler-replicas: the list is empty; choose numbers of replicas, such as 1,2,4")
	}
	for i, replicas := range o.Replicas {
		if replicas < 1 {
			return usage.Errorf("--scheduler-replicas %d: choose 1 or more", replicas)
		}
		if slices.Contains(o.Replicas[:i], replicas) {
			return usage.Errorf("--scheduler-replicas: %d is given twice; list each number once", replicas)
		}
	}
	for _, c := range o.contenders() {
		settings := o.Cluster
		settings.Scheduler, settings.SchedulerReplicas, settings.SchedulerRelays = c.scheduler, c.replicas, c.relays
		settings.Complete()
		if err := settings.Validate(); err != nil {
			return err
		}
	}
	return nil
}

// contender is a scheduler with a number of replicas.
type contender struct {
	scheduler        string
	replicas, relays int
}

func (c contender) String() string {
	if c.replicas == 1 {
		return c.scheduler
	}
	return fmt.Sprintf("%s with %d replicas", c.scheduler, c.replicas)
}

// contenders returns the contenders in the order of measurement.
func (o *Options) contenders() []contender {
	var all []contender
	for _, scheduler := range o.Schedulers {
		if scheduler != clusterdir.SchedulerDist {
			all = append(all, contender{scheduler: scheduler, replicas: 1})
			continue
		}
		for _, replicas := range o.Replicas {
			c := contender{scheduler: scheduler, replicas: replicas}
			if replicas > 1 {
				c.relays = o.Relays
			}
			all = append(all, c)
		}
	}
	return all
}

// clusterFlags returns the flags of `k1m up`, set to the values for a contender.
func (o *Options) clusterFlags(c contender) (*pflag.FlagSet, error) {
	wanted := o.Cluster
	wanted.Scheduler, wanted.SchedulerReplicas, wanted.SchedulerRelays = c.scheduler, c.replicas, c.relays
	if o.seeds() {
		// A profile must not change what is compared.
		wanted.Profile, wanted.Kept = clusterdir.ProfileAuto, []string{"scheduler"}
	}
	return wanted.Flags()
}

// seeds reports whether nodes are written into the store. That is fast, so it is for many nodes.
func (o *Options) seeds() bool { return o.Cluster.NodeSimulator == clusterdir.SimulatorNodeSim }

// minFreeDisk is the free disk space that is required to create a cluster.
var minFreeDisk = resource.MustParse("512Mi")
