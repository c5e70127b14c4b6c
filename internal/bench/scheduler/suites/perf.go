package suites

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// perfProgram is the Go package of the test program.
const perfProgram = "./test/schedperf"

// perfSizes are the labels that the workloads of scheduler_perf have for their sizes, and "all".
var perfSizes = []string{"performance", "short", "integration-test", "all"}

// perfDefault selects the workloads of 5,000 nodes whose upstream thresholds are commonly cited.
const perfDefault = "^misc/SchedulingBasic/5000Nodes_10000Pods$" +
	"|^affinity/SchedulingNodeAffinity/5000Nodes_10000Pods$" +
	"|^affinity/SchedulingPodAffinity/5000Nodes_5000Pods$" +
	"|^affinity/SchedulingPodAntiAffinity/5000Nodes_2000Pods$" +
	"|^topology_spreading/TopologySpreading/5000Nodes_5000Pods$" +
	"|^topology_spreading/DefaultTopologySpreading/5000Nodes_10000Pods$" +
	"|^default_preemption/PreemptionAsync/5000Nodes$"

// perfSmall selects a workload that is long enough for a measurement and takes less than a minute. It has no
// size label.
const perfSmall = "^affinity/SchedulingPodAffinity/500Nodes$"

var schedulePerf = experiment.Experiment{
	Name:  "schedule-perf",
	Short: "Run scheduler_perf of Kubernetes with the index of dist-scheduler and with upstream's search",
	Long: `Run workloads of scheduler_perf of Kubernetes. One test binary runs each workload with the index
of dist-scheduler and with upstream's node search. The table shows both results, and the threshold
that upstream requires on its CI machines.

The test binary is built from the Kubernetes source, so the command needs Go and must run in the
source tree. Workloads of the size "performance" take minutes. Those of the size "short" often take
less than a second, which is too short for a measurement.`,
	Example: `  k1m bench schedule-perf
  k1m bench schedule-perf --workloads 'SchedulingBasic/5000Nodes_10000Pods' --samples 3`,
	Needs: needsSource,
	New: func() experiment.Options {
		return &perfOptions{
			Size: experiment.ChoiceByScale("performance", "all"), Workloads: experiment.ChoiceByScale(perfDefault, perfSmall),
			Samples: 1, Timeout: 20 * time.Minute,
		}
	},
}

// needsSource returns an error if the current directory is not the source tree, or if Go is not installed.
func needsSource() error {
	if _, err := os.Stat(filepath.FromSlash(perfProgram)); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s does not exist; run the command in the source tree", perfProgram)
	}
	if _, err := exec.LookPath("go"); err != nil {
		return fmt.Errorf("scheduler_perf is built from source: %w; install Go", err)
	}
	return nil
}

type perfOptions struct {
	Size      experiment.Choice
	Workloads experiment.Choice
	Samples   int
	Timeout   time.Duration
}

// AddFlags binds the options to flags.
func (o *perfOptions) AddFlags(flags *pflag.FlagSet) {
	flags.Var(&o.Size, "size",
		"size label of the workloads: performance|short|integration-test|all (default by --scale: performance, or "+
			"all below medium)")
	flags.Var(&o.Workloads, "workloads",
		"regular expression for package/case/workload (default by --scale: seven workloads of 5,000 nodes, or one "+
			"of 500 nodes below medium)")
	flags.IntVar(&o.Samples, "samples", o.Samples,
		"number of runs of each workload with each search; the result is the median")
	flags.DurationVar(&o.Timeout, "timeout", o.Timeout, "time limit of a run")
}

// Validate returns the first invalid option as a usage error.
func (o *perfOptions) Validate() error {
	if _, err := regexp.Compile(o.Workloads.Text); err != nil {
		return usage.Errorf("--workloads %q: %v; write a regular expression", o.Workloads.Text, err)
	}
	switch {
	case o.Size.Text != "" && !slices.Contains(perfSizes, o.Size.Text):
		return usage.Errorf("--size %q: choose one of %v", o.Size.Text, perfSizes)
	case o.Samples < 1:
		return usage.Errorf("--samples %d: choose 1 or more", o.Samples)
	case o.Timeout <= 0:
		return usage.Errorf("--timeout %s: must be more than 0", o.Timeout)
	}
	return nil
}

// perfResult is the part of the test program's result that the experiment reads.
type perfResult struct {
	Rows []struct {
		Package      string  `json:"package"`
		Case         string  `json:"case"`
		Size         string  `json:"workload"`
		Threshold    float64 `json:"threshold"` // 0 if upstream has no threshold
		Stock        float64 `json:"stockPodsPerSecond"`
		Ours         float64 `json:"oursPodsPerSecond"`
		Ratio        float64 `json:"ratio"`
		StockSeconds float64 `json:"stockSeconds"`
		OursSeconds  float64 `json:"oursSeconds"`
		Runs         []struct {
			Error string `json:"error"`
		} `json:"runs"`
	} `json:"rows"`
}

// Run implements experiment.Options.
func (o *perfOptions) Run(ctx context.Context, run *experiment.Run) (err error) {
	folder, err := os.MkdirTemp("", "schedperf-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	task := run.Display.Task("scheduler_perf", 0)
	file := filepath.Join(folder, "result.json")
	failed := o.measure(ctx, folder, file, task)
	// The program writes its result after each workload. If it failed, there may still be a partial
	// result.
	if err := o.addRows(run.Result, file); err != nil && failed == nil {
		failed = err
	}
	if ctx.Err() != nil {
		task.Interrupt()
		return ctx.Err()
	}
	if failed != nil {
		task.Fail("see the error")
		return failed
	}
	task.Done("done")
	return nil
}

// measure builds the test program and runs it. It does not use `go run`, which does not forward signals.
func (o *perfOptions) measure(ctx context.Context, folder, file string, task progress.Task) error {
	program := filepath.Join(folder, "schedperf")
	task.Say("building")
	if output, err := exec.CommandContext(ctx, "go", "build", "-o", program, perfProgram).CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w: %s", perfProgram, err, lastPart(string(output)))
	}
	cmd := exec.CommandContext(ctx, program, "-size", o.Size.Text, "-run", o.Workloads.Text,
		"-samples", strconv.Itoa(o.Samples), "-timeout", o.Timeout.String(), "-out", file)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	last := ""
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		task.Say(lines.Text())
		last = lastPart(last + lines.Text() + "\n")
	}
	// The scanner ends at a line that is too long. Read the rest, so that the program does not block.
	_, _ = io.Copy(io.Discard, stderr)
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("scheduler_perf: %w: %s", err, last)
	}
	return nil
}

// addRows reads the result of the test program, and appends a table and ratios.
func (o *perfOptions) addRows(r *experiment.Result, file string) error {
	table := r.Table("scheduler_perf, average pods per second", "workload", "upstream, pods/s", "ours, pods/s", "ours ÷ upstream",
		"upstream's threshold, pods/s", "upstream's measurement, s", "our measurement, s", "failed")
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
		for _, run := range row.Runs {
			var err error
			if run.Error != "" {
				failed, err = run.Error, errors.New(run.Error)
			}
			r.Errors.Add("workload", err)
		}
		table.Add(name, row.Stock, row.Ours, row.Ratio, row.Threshold, row.StockSeconds, row.OursSeconds, failed)
		r.Compare("ours", "stock",
			[]experiment.Figure{{Name: name, Unit: "pods/s", Value: row.Ours, MoreIsBetter: true}},
			[]experiment.Figure{{Name: name, Unit: "pods/s", Value: row.Stock, MoreIsBetter: true}})
	}
	return nil
}

// lastPart returns the last 400 bytes of the output of a program, which contain the error if it failed.
func lastPart(text string) string {
	const maxBytes = 400
	return text[max(0, len(text)-maxBytes):]
}
