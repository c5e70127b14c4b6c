// Package experiment is the framework of the experiments of `k1m bench`: options and scaling to
// the machine, load generation, sampling of a cluster, results, and reports.
//
// Each family of experiments is a package that imports this one:
//
//   - controlplane loads whole clusters: a real control plane with simulated nodes, on each store in
//     turn.
//   - store loads a store without a cluster, and storecluster the members of a replicated one.
//   - scheduler/suites runs several schedulers or workloads in one experiment.
//   - scheduler/inmemory, scheduler/realcluster, scheduler/replicasim and storetrace have commands with
//     their own report formats, which a [Reporter] converts to a [Result].
//
// To add an experiment, declare a variable of type [Experiment] in the package of its family, with a
// type that implements [Options], and add the variable to the function Experiments of that package.
// `k1m bench` then has a command for it, and `k1m bench list` and `k1m bench all` include it. The
// method Run of the options appends tables ([Result.Table]), lines of charts ([Result.Line]), verdicts
// and notes to the result. [Result.Compare] divides the figures of our component by those of the stock
// component, measured in the same run. Such ratios can be compared between machines.
//
// If a run fails or is interrupted, the result contains everything that the run appended until then.
// Package chart draws the charts.
package experiment

import (
	"context"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
)

// Experiment is one command of `k1m bench` that runs in this framework.
type Experiment struct {
	Name string
	// Short is the line in the list of experiments. Long and Example are the help texts.
	Short, Long, Example string
	// Needs returns an error if a prerequisite other than the programs of k1m is missing. `k1m bench
	// all` then skips the experiment. Needs is nil if there is no such prerequisite.
	Needs func() error
	// New returns the options with their default values.
	New func() Options
}

// CheckNeeds returns the error of Needs, or nil if Needs is nil.
func (e *Experiment) CheckNeeds() error {
	if e.Needs == nil {
		return nil
	}
	return e.Needs()
}

// Options are the options of one run of an experiment, and the code that runs it.
type Options interface {
	AddFlags(fs *pflag.FlagSet)
	// Validate returns the first invalid option as a usage error.
	Validate() error
	// Run measures, and appends what it measured to the result of the run. It returns early when ctx
	// ends.
	Run(ctx context.Context, run *Run) error
}

// Run is one run of an experiment.
type Run struct {
	Result  *Result
	Display progress.Display
	Scale   Scale
	// Dir is the directory of the cluster. Named reports that the user selected the cluster with
	// --name. If the selected cluster is running, the run uses it instead of creating a cluster.
	Dir   clusterdir.Dir
	Named bool
	// KeepFailed keeps the files of a cluster that does not start, with its logs.
	KeepFailed bool
}
