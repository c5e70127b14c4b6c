// Package network contains the experiment `k1m bench network`: what the IPv6-only network costs and how quickly it changes,
// in labs on this machine, against plain routing, an overlay and ndppd, measured in one run and judged by limits.
//
// rows.go lists the rows, which --only selects; each is in a file of its own. verdicts.go has the limits.
package network

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/network/lab"
	"github.com/k8s-1m/k8s-1m/internal/network/netns"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// Experiments returns the experiments of this package.
func Experiments() []experiment.Experiment { return []experiment.Experiment{network} }

var network = experiment.Experiment{
	Name:  "network",
	Short: "Measure the IPv6-only network in labs: size, pods, throughput, neighbour answers, nodes that leave, IPv4 gateway",
	Long: `Measure the network of a cluster in labs of network namespaces, with the real network-agent and the real CNI
plugins, and judge the figures. The run fails if a figure misses a limit that it must meet. With a scale below
medium these limits are shown, but do not fail the run.

` + rowsHelp() + `
It needs root. The row answers compares with ndppd, and the row gateway with tayga, if they are installed.`,
	Example: `  k1m bench network
  k1m bench network --only throughput,answers
  k1m bench network --nodes 500 --pods 10 --only lab`,
	Needs: netns.Check,
	New:   func() experiment.Options { return defaultOptions() },
}

// options are the options of the experiment.
type options struct {
	Only        []string
	Nodes, Pods experiment.Count
	Duration    experiment.Span
	Rounds      experiment.Count
	Leaves      experiment.Count
	Timeout     time.Duration
}

func defaultOptions() *options {
	return &options{
		Only: rowNames(), Nodes: experiment.ByScale(200, 5), Pods: experiment.Fixed(5), Duration: experiment.SpanByScale(5*time.Second, time.Second),
		Rounds: experiment.ByScale(5, 1), Leaves: experiment.ByScale(10, 2), Timeout: time.Minute,
	}
}

// AddFlags binds the options to flags.
func (o *options) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.Only, "only", o.Only, "rows to measure: "+strings.Join(rowNames(), ", "))
	fs.Var(&o.Nodes, "nodes", o.Nodes.Usage("row lab: number of nodes, at most 1000"))
	fs.Var(&o.Pods, "pods", "row lab: number of pods of each node")
	fs.Var(&o.Duration, "duration", o.Duration.Usage("duration of each measurement of throughput and of answers"))
	fs.Var(&o.Rounds, "rounds", o.Rounds.Usage("rows throughput and answers: how often each contender is measured, in turn; the median counts"))
	fs.Var(&o.Leaves, "leaves", o.Leaves.Usage("row leave: number of nodes that leave"))
	fs.DurationVar(&o.Timeout, "timeout", o.Timeout, "how long a pod may need to answer, and a node to disappear")
}

// Validate returns the first invalid option as a usage error.
func (o *options) Validate() error {
	for _, name := range o.Only {
		if !slices.Contains(rowNames(), name) {
			return usage.Errorf("--only %q: no such row; choose one of %s", name, strings.Join(rowNames(), ", "))
		}
	}
	switch {
	case len(o.Only) == 0:
		return usage.Errorf("--only: the list is empty; choose %s", strings.Join(rowNames(), ", "))
	case o.Nodes.N > lab.MaxNodes:
		return usage.Errorf("--nodes %d: choose at most %d", o.Nodes.N, lab.MaxNodes)
	case o.Timeout <= 0:
		return usage.Errorf("--timeout %s: must be more than 0", o.Timeout)
	}
	return nil
}

// bench is a run of the experiment.
type bench struct {
	*experiment.Run
	options *options
	// agent is the program of the agent, plugins the directory of the CNI plugins.
	agent, plugins string
	labs           int
}

// Run implements experiment.Options.
func (o *options) Run(ctx context.Context, run *experiment.Run) error {
	program, err := component.FindBinary("network-agent")
	if err != nil {
		return err
	}
	b := &bench{Run: run, options: o, agent: program, plugins: filepath.Join(filepath.Dir(program), "cni")}
	for _, r := range rows() {
		if !slices.Contains(o.Only, r.name) {
			continue
		}
		if err := r.measure(b, ctx); err != nil {
			return fmt.Errorf("row %s: %w", r.name, err)
		}
	}
	return nil
}

// withLab builds a lab, calls use and removes the lab.
func (b *bench) withLab(ctx context.Context, mode string, nodes, pods int, timings *lab.Timings, use func(*lab.Lab) error) (err error) {
	b.labs++
	o := lab.DefaultOptions()
	o.Name, o.Mode, o.Nodes, o.PodsPerNode = fmt.Sprintf("k1mb-%d-%d", os.Getpid(), b.labs), mode, nodes, pods
	o.Agent, o.Plugins = b.agent, b.plugins
	l, err := lab.Up(ctx, o, b.Display, timings)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Down()) }()
	return use(l)
}

// median returns the middle one of values, which it sorts.
func median(values []float64) float64 {
	slices.Sort(values)
	if len(values) == 0 {
		return 0
	}
	return values[len(values)/2]
}
