// Package experiment is what all experiments of `k1m bench` share: how they are set up,
// what they sample while they run, and how they report.
//
// An experiment appends to its result as it goes, so that one that is interrupted keeps
// what it has. What it finds are tables, series, and figures of contenders that it
// compares in one run; figures of the stock component and of ours become ratios, which
// is what can be held against another run or another machine.
package experiment

import (
	"context"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
)

// Experiment is one that `k1m bench` has.
type Experiment struct {
	Name string
	// Short is its line in the list, Long and Example are its help.
	Short, Long, Example string
	// Needs says what is missing here, if it needs more than k1m's own programs. `k1m bench
	// all` leaves it out then.
	Needs func() error
	// New makes its options, at their defaults.
	New func() Options
}

// Missing is what the experiment cannot do without, and is not here.
func (e *Experiment) Missing() error {
	if e.Needs == nil {
		return nil
	}
	return e.Needs()
}

// Options of one run, and the run itself.
type Options interface {
	AddFlags(fs *pflag.FlagSet)
	// Validate reports the first option that cannot be.
	Validate() error
	// Run appends to the result of the run, and returns early when ctx ends.
	Run(ctx context.Context, run *Run) error
}

// Run is one run of an experiment.
type Run struct {
	Result  *Result
	Display progress.Display
	Scale   Scale
	// Dir is the cluster's. Given says that the user named it, so that one that runs is
	// used as it is.
	Dir   clusterdir.Dir
	Given bool
}
