// Package inmemory measures a scheduler in this process, without a cluster: pods and nodes are
// delivered in memory, and a bind is only acknowledged. The result is the cost of the scheduler
// itself. Package realcluster measures the same schedulers in a real cluster.
//
// Decisions are compared with package reference after the measurement. Decisions are sequential,
// so the state that the scheduler had at each decision can be reconstructed.
package inmemory

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// Kinds of pods, as values of --pod-kind.
const (
	Plain                = "plain"
	Deployment           = "deployment"
	ZoneAntiAffinity     = "zone-anti-affinity"
	HostnameAntiAffinity = "hostname-anti-affinity"
	Mixed                = "mixed"
	Unique               = "unique"
	VanishedNodes        = "vanished-nodes"
	BoundVolume          = "pvc"
	NewVolume            = "csi"
	Device               = "claim"
)

// Kinds lists the kinds of pods, approximately in the order of their cost for kube-scheduler.
var Kinds = []string{Plain, Deployment, ZoneAntiAffinity, HostnameAntiAffinity, Mixed, Unique, VanishedNodes, BoundVolume, NewVolume, Device}

const (
	// maxPodsPerNode is the maximum average. It is less than the 110 pods that a node accepts, so that
	// the cluster never becomes full.
	maxPodsPerNode = 100
	maxNodes       = 10_000_000
	maxPods        = 10_000_000

	// The numbers of existing pods, in all and per node, are those of the eBay cluster in which missing
	// nodes slowed down the scheduler.
	defaultExisting        = 170_000
	defaultExistingPerNode = 34

	// These limits bound the time of checking if --check is not set, because the reference scans every
	// node and pod for each decision.
	defaultChecks       = 100
	defaultCheckObjects = 1_000_000
	minDefaultChecks    = 30
)

// Options are the options of one run.
type Options struct {
	Nodes, Pods int
	PodKind     string
	Scheduler   string
	Zones       int
	// Existing is the number of pods that are on nodes before the run. It is an option of the kind
	// VanishedNodes; 0 selects the default.
	Existing int
	// Check is the number of decisions that are compared with the reference. It is a count, or a fraction
	// if it contains a decimal point. "" selects the default.
	Check string
	Seed  int64
	// CPUProfile and HeapProfile are output files for pprof profiles; "" writes none.
	CPUProfile, HeapProfile string
}

// DefaultOptions returns the default options. Such a run takes a few seconds.
func DefaultOptions() Options {
	return Options{
		Nodes: 5000, Pods: 2000, PodKind: Plain, Scheduler: clusterdir.SchedulerDist, Zones: 10, Seed: 1,
	}
}

// AddFlags binds the options to flags.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.IntVar(&o.Nodes, "nodes", o.Nodes, "number of nodes")
	fs.IntVar(&o.Pods, "pods", o.Pods, "number of pods to schedule")
	fs.StringVar(&o.PodKind, "pod-kind", o.PodKind, "kind of pods: "+strings.Join(Kinds, "|"))
	fs.StringVar(&o.Scheduler, "scheduler", o.Scheduler, "dist-scheduler|kube-scheduler")
	fs.IntVar(&o.Zones, "zones", o.Zones, "number of zones; nodes are distributed evenly")
	fs.IntVar(&o.Existing, "existing", o.Existing,
		"number of pods that exist before the run with --pod-kind vanished-nodes (default 34 per node, at most 170000)")
	fs.StringVar(&o.Check, "check", o.Check,
		"number of decisions to compare with a reference that scores every node: a count, or a fraction such as 0.1 "+
			"or 1.0 (default: at most 100, fewer if there are more than 10000 nodes and pods, none for kube-scheduler, "+
			"which scores a sample of the nodes)")
	fs.Int64Var(&o.Seed, "seed", o.Seed, "seed for the order of pods and the choice of decisions to check")
	fs.StringVar(&o.CPUProfile, "cpu-profile", o.CPUProfile, "output file for a CPU profile of the measurement")
	fs.StringVar(&o.HeapProfile, "heap-profile", o.HeapProfile, "output file for a heap profile at the end")
}

// Complete sets the options that follow from other options.
func (o *Options) Complete() {
	if o.PodKind != VanishedNodes {
		o.Existing = 0
	} else if o.Existing == 0 {
		o.Existing = min(defaultExisting, o.Nodes*defaultExistingPerNode)
	}
}

// Validate returns the first invalid option as a usage error.
func (o *Options) Validate() error {
	switch {
	case o.Nodes < 1 || o.Nodes > maxNodes:
		return usage.Errorf("--nodes %d: choose 1 to %d", o.Nodes, maxNodes)
	case o.Pods < 1 || o.Pods > maxPods:
		return usage.Errorf("--pods %d: choose 1 to %d", o.Pods, maxPods)
	case !slices.Contains(Kinds, o.PodKind):
		return usage.Errorf("--pod-kind %q: no such kind; choose one of %s", o.PodKind, strings.Join(Kinds, ", "))
	case o.Scheduler != clusterdir.SchedulerDist && o.Scheduler != clusterdir.SchedulerKube:
		return usage.Errorf("--scheduler %q: no such scheduler; choose dist-scheduler or kube-scheduler", o.Scheduler)
	case o.Zones < 1:
		return usage.Errorf("--zones %d: choose 1 or more", o.Zones)
	case o.Existing < 0:
		return usage.Errorf("--existing %d: cannot be negative; omit it to use the default", o.Existing)
	case o.PodKind == NewVolume && o.Pods > o.Nodes*volumesPerNode, o.PodKind == Device && o.Pods > o.Nodes*devicesPerNode:
		return usage.Errorf("--pods %d: %d nodes have %d devices and room for %d new volumes; use fewer pods or more nodes",
			o.Pods, o.Nodes, o.Nodes*devicesPerNode, o.Nodes*volumesPerNode)
	case o.Pods+o.Existing > o.Nodes*maxPodsPerNode:
		return usage.Errorf("--pods %d: %d nodes have room for %d pods in addition to the %d existing pods; use fewer pods or more nodes",
			o.Pods, o.Nodes, max(0, o.Nodes*maxPodsPerNode-o.Existing), o.Existing)
	}
	_, err := o.checkCount()
	return err
}

// checkCount returns the number of decisions to check.
func (o *Options) checkCount() (int, error) {
	if o.Check == "" {
		if o.Scheduler == clusterdir.SchedulerKube {
			return 0, nil
		}
		affordable := defaultCheckObjects / (o.Nodes + o.Pods + o.Existing)
		return min(o.Pods, max(minDefaultChecks, min(defaultChecks, affordable))), nil
	}
	if count, err := strconv.Atoi(o.Check); err == nil && count >= 0 {
		return min(count, o.Pods), nil
	}
	fraction, err := strconv.ParseFloat(o.Check, 64)
	if err != nil || !(fraction >= 0 && fraction <= 1) {
		return 0, usage.Errorf("--check %q: neither a count nor a fraction from 0.0 to 1.0", o.Check)
	}
	return int(math.Ceil(fraction * float64(o.Pods))), nil
}
