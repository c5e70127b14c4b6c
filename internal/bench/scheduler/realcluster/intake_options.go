package realcluster

import (
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

const (
	maxRate     = 100_000
	maxDuration = time.Hour
)

// IntakeOptions are the options of a run that compares the ways in which the scheduler receives pods.
type IntakeOptions struct {
	Intakes []string
	// Rates are the rates of pod creation to measure, in pods per second.
	Rates []int
	// Duration is how long pods are created at each rate.
	Duration time.Duration
	// Cluster contains the nodes, zones and store of the cluster.
	Cluster clusterdir.Settings
	Shape   bulk.PodShape
	// Timeout limits the time until the cluster is ready, and the time in which no further pod becomes bound.
	Timeout time.Duration
	Keep    bool
}

// DefaultIntakeOptions returns the default options. Such a run takes some minutes.
func DefaultIntakeOptions() IntakeOptions {
	o := IntakeOptions{
		Intakes: []string{clusterdir.IntakeWatch, clusterdir.IntakeWebhook}, Rates: []int{100, 250, 500, 1000, 2000}, Duration: 10 * time.Second,
		Cluster: clusterdir.DefaultSettings(), Shape: bulk.DefaultPodShape(), Timeout: defaultTimeout,
	}
	o.Cluster.Nodes = 500
	o.Shape.Namespace = "k1m-bench"
	return o
}

// AddFlags binds the options to flags.
func (o *IntakeOptions) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.Intakes, "intakes", o.Intakes, "intakes to measure (watch, webhook), in the given order")
	fs.IntSliceVar(&o.Rates, "rates", o.Rates,
		"rates of pod creation in pods per second, ascending; higher rates are omitted when the API server accepts "+
			"less than 90 % of a rate")
	fs.DurationVar(&o.Duration, "duration", o.Duration, "how long to create pods at each rate")
	fs.IntVar(&o.Cluster.Nodes, "nodes", o.Cluster.Nodes, "number of nodes")
	fs.IntVar(&o.Cluster.Zones, "zones", o.Cluster.Zones, "number of zones; nodes are distributed evenly")
	fs.StringVar(&o.Cluster.Store, "store", o.Cluster.Store, "store of the cluster: mem_etcd|etcd")
	fs.StringVar(&o.Shape.Template, "template", o.Shape.Template,
		"file with a Pod that is the template of all pods (default: a Pod with one small container)")
	fs.DurationVar(&o.Timeout, "timeout", o.Timeout,
		"time limit for the start of the cluster, and for the time in which no further pod becomes bound")
	fs.BoolVar(&o.Keep, "keep", o.Keep, "do not remove the cluster of the last intake")
}

// Validate returns the first invalid option as a usage error.
func (o *IntakeOptions) Validate() error {
	intakes := []string{clusterdir.IntakeWatch, clusterdir.IntakeWebhook}
	for i, name := range o.Intakes {
		if !slices.Contains(intakes, name) {
			return usage.Errorf("--intakes %q: no such intake; choose %s or both", name, strings.Join(intakes, ", "))
		}
		if slices.Contains(o.Intakes[:i], name) {
			return usage.Errorf("--intakes %s: %s is given twice; list each once", strings.Join(o.Intakes, ","), name)
		}
	}
	for i, rate := range o.Rates {
		if rate < 1 || rate > maxRate || i > 0 && rate <= o.Rates[i-1] {
			return usage.Errorf("--rates %d: choose 1 to %d, in ascending order", rate, maxRate)
		}
	}
	switch {
	case len(o.Intakes) == 0:
		return usage.Errorf("--intakes: the list is empty; choose %s or both", strings.Join(intakes, ", "))
	case len(o.Rates) == 0:
		return usage.Errorf("--rates: the list is empty; choose rates, such as 100,250,500")
	case o.Duration < time.Second || o.Duration > maxDuration:
		return usage.Errorf("--duration %s: choose 1s to %s", o.Duration, maxDuration)
	}
	return o.validateRoom()
}

// validateRoom checks that the nodes have room for the pods of all rates, because pods are not deleted
// between rates.
func (o *IntakeOptions) validateRoom() error {
	pods := warmUpPods
	for _, rate := range o.Rates {
		pods += o.count(rate)
	}
	if room := o.Cluster.Nodes * bulk.DefaultNodeShape().Pods; pods > room {
		return usage.Errorf("--nodes %d: these nodes have room for %d pods, but the run creates %d; use more nodes, lower rates or a shorter duration",
			o.Cluster.Nodes, room, pods)
	}
	base := o.base()
	return base.Validate()
}

// count returns the number of pods that are created at a rate.
func (o *IntakeOptions) count(rate int) int {
	return max(1, int(float64(rate)*o.Duration.Seconds()))
}

// base returns the options that `k1m bench schedule` also has.
func (o *IntakeOptions) base() Options {
	return Options{
		Schedulers: []string{clusterdir.SchedulerDist}, Replicas: []int{1}, Cluster: o.Cluster, Pods: 1, Samples: 1, Shape: o.Shape, Timeout: o.Timeout, Keep: o.Keep,
	}
}

// clusterFlags returns the flags of `k1m up` for an intake. The scheduler logs when it receives and binds
// each pod.
func (o *IntakeOptions) clusterFlags(intake string) (*pflag.FlagSet, error) {
	base := o.base()
	fs, err := base.clusterFlags(contender{scheduler: clusterdir.SchedulerDist, replicas: 1})
	if err != nil {
		return nil, err
	}
	if err := fs.Set("scheduler-intake", intake); err != nil {
		return nil, err
	}
	return fs, fs.Set("scheduler-arg", "vmodule=intake_metrics=4,eventhandlers=3,schedule_one=2")
}
