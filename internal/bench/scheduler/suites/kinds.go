package suites

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/bench/scheduler/inmemory"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

var scheduleKinds = experiment.Experiment{
	Name:  "schedule-kinds",
	Short: "Measure schedulers in memory for several kinds of pods and node counts",
	Long: `Run schedule-million for each kind of pods and each number of nodes, each time in a new process.
The result shows the CPU time per pod, and how it grows with the number of nodes. kube-scheduler is
measured only with the smallest number of nodes, because its cost per pod grows with that number.
For pods with a bound volume (pvc), with a new volume and a limit of volumes per node (csi), and with a
claim for a device (claim), the ratio of the CPU time per pod of kube-scheduler to that of dist-scheduler
is compared with limits. The run fails if it misses one that it must meet, unless the scale is below
medium.`,
	Example: `  k1m bench schedule-kinds
  k1m bench schedule-kinds --kinds plain,deployment --nodes 5000,50000,500000 --schedulers dist-scheduler`,
	New: func() experiment.Options {
		return &kindsOptions{
			Schedulers: []string{clusterdir.SchedulerDist, clusterdir.SchedulerKube}, Nodes: []int{5000, 100_000},
			Kinds: slices.DeleteFunc(slices.Clone(inmemory.Kinds), func(kind string) bool { return kind == inmemory.VanishedNodes }),
			Pods:  experiment.ByScale(5000, 1500), // the CPU time of fewer pods is too short to measure
		}
	},
}

// limits are lower limits of the CPU time per pod of kube-scheduler, divided by that of dist-scheduler, by kind of pods.
var limits = map[string]experiment.Limit{
	inmemory.BoundVolume: {Must: 8, Aim: 20},
	inmemory.NewVolume:   {Must: 5, Aim: 15},
	inmemory.Device:      {Must: 5, Aim: 20},
}

type kindsOptions struct {
	Schedulers, Kinds []string
	Nodes             []int
	Pods              experiment.Count
}

// AddFlags binds the options to flags.
func (o *kindsOptions) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.Schedulers, "schedulers", o.Schedulers, "schedulers to measure, in this order")
	fs.StringSliceVar(&o.Kinds, "kinds", o.Kinds, "kinds of pods: "+strings.Join(inmemory.Kinds, "|"))
	fs.IntSliceVar(&o.Nodes, "nodes", o.Nodes, "numbers of nodes to measure, ascending")
	fs.Var(&o.Pods, "pods", o.Pods.Usage("number of pods to schedule in each run"))
}

// Validate returns the first invalid option as a usage error.
func (o *kindsOptions) Validate() error {
	if len(o.Kinds) == 0 || len(o.Nodes) == 0 {
		return usage.Errorf("--kinds and --nodes: each needs at least one value")
	}
	for i, kind := range o.Kinds {
		if slices.Contains(o.Kinds[:i], kind) {
			return usage.Errorf("--kinds %s: %s is given twice; list each once", strings.Join(o.Kinds, ","), kind)
		}
		for _, nodes := range o.Nodes {
			run := o.run(kind, clusterdir.SchedulerDist, nodes)
			if err := run.Validate(); err != nil {
				return err
			}
		}
	}
	if !slices.IsSorted(o.Nodes) || len(slices.Compact(slices.Clone(o.Nodes))) < len(o.Nodes) {
		return usage.Errorf("--nodes %v: choose ascending numbers", o.Nodes)
	}
	return validateSchedulers(o.Schedulers)
}

// run returns the options of one run of schedule-million.
func (o *kindsOptions) run(kind, scheduler string, nodes int) inmemory.Options {
	run := inmemory.DefaultOptions()
	run.PodKind, run.Scheduler, run.Nodes, run.Pods = kind, scheduler, nodes, max(o.Pods.N, 1)
	run.Complete()
	return run
}

// runs returns the options of all runs, in their order.
func (o *kindsOptions) runs() (runs []inmemory.Options) {
	for _, kind := range o.Kinds {
		for i, nodes := range o.Nodes {
			for _, scheduler := range o.Schedulers {
				if i == 0 || scheduler != clusterdir.SchedulerKube {
					runs = append(runs, o.run(kind, scheduler, nodes))
				}
			}
		}
	}
	return runs
}

// Run implements experiment.Options.
func (o *kindsOptions) Run(ctx context.Context, run *experiment.Run) error {
	table := run.Result.Table("Schedulers in memory, without a cluster", inmemory.Columns...)
	figures, runs := map[string][]experiment.Figure{}, o.runs()
	task := run.Display.Task("runs", len(runs))
	for i, options := range runs {
		title := fmt.Sprintf("%s, %s pods, %d nodes", options.Scheduler, options.PodKind, options.Nodes)
		task.Say(title)
		result, err := measureInNewProcess(ctx, options)
		if ctx.Err() != nil {
			task.Interrupt()
			return ctx.Err()
		}
		if err != nil {
			task.Fail("see the error")
			return fmt.Errorf("%s: %w", title, err)
		}
		task.Set(i + 1)
		inmemory.AddTo(table, result)
		run.Result.Errors.AddMany(int64(result.Decided), nil)
		run.Result.Line(experiment.Series{
			Plot: "CPU per pod by nodes", Name: options.Scheduler + ", " + options.PodKind, X: "nodes", Unit: "µs", LogX: true, LogY: true,
		}, float64(options.Nodes), result.CPUMicrosPerPod)
		if options.Nodes == o.Nodes[0] {
			figures[options.Scheduler] = append(figures[options.Scheduler],
				experiment.Figure{Name: cpuFigure(options.PodKind), Unit: "µs", Value: result.CPUMicrosPerPod})
		}
	}
	task.Done("done")
	run.Result.Compare(clusterdir.SchedulerDist, clusterdir.SchedulerKube, figures[clusterdir.SchedulerDist], figures[clusterdir.SchedulerKube])
	o.judge(run)
	return nil
}

// cpuFigure returns the name of the figure of a kind of pods.
func cpuFigure(kind string) string { return kind + ": CPU per pod" }

// judge compares the ratios of the kinds that have limits with these.
func (o *kindsOptions) judge(run *experiment.Run) {
	for _, kind := range o.Kinds {
		limit, limited := limits[kind]
		if !limited {
			continue
		}
		for _, ratio := range run.Result.Ratios {
			if ratio.Name == cpuFigure(kind) {
				limit.Name, limit.Unit, limit.AtLeast = ratio.Name+", kube-scheduler ÷ dist-scheduler", "×", true
				run.Judge(limit, 1/ratio.Ratio, o.Pods.N, "")
			}
		}
	}
}

// measureInNewProcess runs schedule-million in a new process of this program, so that the peak memory does
// not include other runs.
func measureInNewProcess(ctx context.Context, o inmemory.Options) (*inmemory.Result, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, "bench", "schedule-million", "-o", "json", "--nodes", strconv.Itoa(o.Nodes),
		"--pods", strconv.Itoa(o.Pods), "--pod-kind", o.PodKind, "--scheduler", o.Scheduler)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	var output, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &stderr
	failed := cmd.Run()
	result := &inmemory.Result{}
	if err := errors.Join(failed, json.Unmarshal(output.Bytes(), result)); err != nil {
		return nil, fmt.Errorf("%w: %s", err, lastPart(stderr.String()))
	}
	return result, nil
}
