// Command schedperf runs Kubernetes' scheduler_perf with dist-scheduler's node search ("ours") and with
// kube-scheduler's ("stock"), and compares the results.
//
// Both searches are measured with the same test binary: scheduler_perf in the version that go.mod pins, with
// an API server in the process and etcd as a second process. A hook attaches dist-scheduler's node search in
// the runs of "ours" (test/upstream/prepare.sh). Each run of a workload is a new process, and the runs of both
// searches alternate. The result of a run is scheduler_perf's average of SchedulingThroughput. Results are
// written after each workload, so that an interrupted run keeps the results so far.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"
)

// Exit codes.
const (
	exitFailed = 1
	exitUsage  = 2
)

type options struct {
	run     *regexp.Regexp
	size    string
	samples int
	timeout time.Duration
	list    bool
	scratch string
	out     string
}

func main() {
	opts, err := parse()
	if err != nil {
		fmt.Fprintln(os.Stderr, "schedperf:", err)
		os.Exit(exitUsage)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := compare(ctx, opts); err != nil {
		fmt.Fprintln(os.Stderr, "schedperf:", err)
		os.Exit(exitFailed)
	}
}

func parse() (options, error) {
	var o options
	pattern := flag.String("run", "", "run only workloads whose package/case/workload matches this regular expression")
	flag.StringVar(&o.size, "size", "performance", "run only workloads with this label: performance, short, integration-test, or all")
	flag.IntVar(&o.samples, "samples", 1, "number of runs of each workload with each search; the result is the median")
	flag.DurationVar(&o.timeout, "timeout", 10*time.Minute, "time limit of a run; the result of a longer run is \"timed out\"")
	flag.BoolVar(&o.list, "list", false, "list the workloads and do not run them")
	flag.StringVar(&o.scratch, "scratch", filepath.Join("target", "upstream"), "directory for the copy of Kubernetes' source and for the test binaries")
	flag.StringVar(&o.out, "out", filepath.Join("results", time.Now().UTC().Format("20060102T150405Z")+"_schedperf", "result.json"), "file for the result")
	flag.Parse()
	if o.samples < 1 || flag.NArg() > 0 {
		return o, fmt.Errorf("usage: schedperf [flags]; -samples must be at least 1; see -help")
	}
	var err error
	if o.run, err = regexp.Compile(*pattern); err != nil {
		return o, fmt.Errorf("-run: %w", err)
	}
	if o.scratch, err = filepath.Abs(o.scratch); err != nil {
		return o, err
	}
	return o, nil
}

func compare(ctx context.Context, opts options) error {
	source, err := findSource(ctx)
	if err != nil {
		return err
	}
	chosen, err := source.workloads(opts)
	if err != nil {
		return err
	}
	if opts.list {
		for _, w := range chosen {
			fmt.Println(w.name(), w.Labels)
		}
		return nil
	}
	lab, err := prepare(ctx, source, opts, chosen)
	if err != nil {
		return err
	}
	r := result{Time: time.Now().UTC(), Kubernetes: source.Version, Samples: opts.samples, Timeout: opts.timeout.String()}
	for i, w := range chosen {
		row := lab.measure(ctx, w, fmt.Sprintf("[%d/%d]", i+1, len(chosen)))
		if ctx.Err() != nil {
			fmt.Fprintln(os.Stderr, "interrupted; results so far:")
			break
		}
		r.Rows = append(r.Rows, row)
		r.Seconds = time.Since(r.Time).Seconds()
		r.Complete = len(r.Rows) == len(chosen)
		if err := r.save(opts.out); err != nil {
			return err
		}
	}
	r.print(os.Stdout)
	fmt.Printf("\n%s\n", opts.out)
	if slices.ContainsFunc(r.Rows, row.failed) {
		return fmt.Errorf("some runs failed; their logs are in %s", lab.logs)
	}
	return ctx.Err()
}
