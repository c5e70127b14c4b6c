package schedload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/experiment"
	"github.com/k8s-1m/k8s-1m/internal/usage"
)

// perfProgram is what it runs, in the source tree.
const perfProgram = "./test/schedperf"

// perfSizes are labels of scheduler_perf's workloads.
var perfSizes = []string{"performance", "short", "integration-test", "all"}

var schedulePerf = experiment.Experiment{
	Name:  "schedule-perf",
	Short: "Run Kubernetes' own scheduler_perf with our search and with upstream's",
	Long: `Run the workloads of Kubernetes' scheduler_perf, by turns with our search and with
upstream's, in the same test binary. It is built from Kubernetes' source, so the command
has to run in the source tree, and needs Go. Short workloads take some seconds each,
those of the size performance minutes.`,
	Example: `  k1m bench schedule-perf --workloads TopologySpreading
  k1m bench schedule-perf --size performance --workloads 'SchedulingBasic/5000Nodes'`,
	Apart: true,
	New: func() experiment.Options {
		return &perfOptions{Size: "short", Workloads: "SchedulingBasic|SchedulingPodAntiAffinity|^topology_spreading/TopologySpreading", Samples: 1, Timeout: 10 * time.Minute}
	},
}

type perfOptions struct {
	Size      string
	Workloads string
	Samples   int
	Timeout   time.Duration
}

// AddFlags binds the options to flags.
func (o *perfOptions) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.Size, "size", o.Size, "label of the workloads: performance|short|integration-test|all")
	flags.StringVar(&o.Workloads, "workloads", o.Workloads, "regular expression for package/case/workload")
	flags.IntVar(&o.Samples, "samples", o.Samples, "how often each workload runs with each search; the median counts")
	flags.DurationVar(&o.Timeout, "timeout", o.Timeout, "end a run that takes longer")
}

// Validate reports the first option that cannot be.
func (o *perfOptions) Validate() error {
	if _, err := regexp.Compile(o.Workloads); err != nil {
		return usage.Errorf("--workloads %q: %v; write a regular expression", o.Workloads, err)
	}
	switch {
	case !slices.Contains(perfSizes, o.Size):
		return usage.Errorf("--size %q: choose of %v", o.Size, perfSizes)
	case o.Samples < 1:
		return usage.Errorf("--samples %d: choose 1 or more", o.Samples)
	case o.Timeout <= 0:
		return usage.Errorf("--timeout %s: must be more than 0", o.Timeout)
	}
	return nil
}

// perfResult is the part of its result that is used here.
type perfResult struct {
	Rows []struct {
		Package string  `json:"package"`
		Case    string  `json:"case"`
		Size    string  `json:"workload"`
		Stock   float64 `json:"stockPodsPerSecond"`
		Ours    float64 `json:"oursPodsPerSecond"`
		Ratio   float64 `json:"ratio"`
		Runs    []struct {
			Error string `json:"error"`
		} `json:"runs"`
	} `json:"rows"`
}

// Run is the experiment.
func (o *perfOptions) Run(ctx context.Context, run *experiment.Run) (err error) {
	if _, err := os.Stat(filepath.FromSlash(perfProgram)); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is not here; run the command in the source tree", perfProgram)
	}
	folder, err := os.MkdirTemp("", "schedperf-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	task := run.Display.Task("scheduler_perf", 0)
	task.Say("building it, and running " + o.Workloads)
	file := filepath.Join(folder, "result.json")
	cmd := exec.CommandContext(ctx, "go", "run", perfProgram, "-size", o.Size, "-run", o.Workloads,
		"-samples", strconv.Itoa(o.Samples), "-timeout", o.Timeout.String(), "-out", file)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	output, failed := cmd.CombinedOutput()
	// It writes after each workload, so there may be something even if it failed.
	if err := o.take(run.Result, file); err != nil && failed == nil {
		failed = err
	}
	if ctx.Err() != nil {
		task.Interrupt()
		return ctx.Err()
	}
	if failed != nil {
		task.Fail("see the error")
		return fmt.Errorf("scheduler_perf: %w: %s", failed, lastLines(output))
	}
	task.Done("done")
	return nil
}

func (o *perfOptions) take(r *experiment.Result, file string) error {
	table := r.Table("scheduler_perf, average pods a second", "workload", "stock, pods/s", "ours, pods/s", "ours ÷ stock", "failed")
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var found perfResult
	if err := json.Unmarshal(data, &found); err != nil {
		return err
	}
	for _, row := range found.Rows {
		name, failed := path.Join(row.Package, row.Case, row.Size), ""
		for _, one := range row.Runs {
			var err error
			if one.Error != "" {
				failed, err = one.Error, errors.New(one.Error)
			}
			r.Errors.Add("workload", err)
		}
		table.Add(name, row.Stock, row.Ours, row.Ratio, failed)
		r.Compare("ours", "stock",
			[]experiment.Figure{{Name: name, Unit: "pods/s", Value: row.Ours, MoreIsBetter: true}},
			[]experiment.Figure{{Name: name, Unit: "pods/s", Value: row.Stock, MoreIsBetter: true}})
	}
	return nil
}

// lastLines of what a program says, which is where its error is.
func lastLines(output []byte) string {
	const most = 400
	return string(output[max(0, len(output)-most):])
}
