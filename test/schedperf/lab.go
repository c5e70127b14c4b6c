package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/k8s-1m/k8s-1m/test/upstream/attach"
)

// The compared node searches: kube-scheduler's and dist-scheduler's.
const (
	stock = "stock"
	ours  = "ours"
)

// leftOut is the error of a workload that is not compared because dist-scheduler's node search does not support
// it.
const leftOut = "left out: pod groups"

// lab contains the directories and test binaries for the measurements.
type lab struct {
	opts options
	// copy is the copy of Kubernetes' source with the hook.
	copy string
	// binaries is the directory of the test binaries, logs that of the logs of failed runs.
	binaries, logs string
}

// prepare compiles the test packages of the workloads.
func prepare(ctx context.Context, s source, opts options, chosen []workload) (*lab, error) {
	l := &lab{
		opts: opts, copy: filepath.Join(opts.scratch, "kubernetes@"+s.Version),
		binaries: filepath.Join(opts.scratch, "schedperf"), logs: filepath.Join(opts.scratch, "schedperf", "logs"),
	}
	if err := os.MkdirAll(l.logs, 0o755); err != nil {
		return nil, err
	}
	packages := map[string]bool{}
	for _, w := range chosen {
		if packages[w.Package] {
			continue
		}
		packages[w.Package] = true
		name := "k8s.io/kubernetes/" + perfDirectory + "/" + w.Package
		fmt.Fprintln(os.Stderr, "compiling", w.Package)
		for _, command := range [][]string{
			{"test/upstream/prepare.sh", opts.scratch, name},
			{"go", "test", "-modfile", filepath.Join(opts.scratch, "go.mod"), "-c", "-o", l.binary(w), name},
		} {
			if output, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
				return nil, fmt.Errorf("%s: %w\n%s", strings.Join(command, " "), err, output)
			}
		}
	}
	return l, nil
}

// binary returns the path of the test binary of a workload.
func (l *lab) binary(w workload) string {
	return filepath.Join(l.binaries, strings.ReplaceAll(w.Package, "/", "_")+".test")
}

// measure runs a workload alternately with both searches. position is its position in the list of workloads, for
// the progress lines.
func (l *lab) measure(ctx context.Context, w workload, position string) row {
	r := row{workload: w}
	if w.hasPodGroups {
		fmt.Fprintf(os.Stderr, "%s %s: %s\n", position, w.name(), leftOut)
		r.Runs = []run{{Search: stock, Error: leftOut}, {Search: ours, Error: leftOut}}
		return r
	}
	for range l.opts.samples {
		for _, search := range []string{stock, ours} {
			one := l.run(ctx, w, search)
			if ctx.Err() != nil {
				return r
			}
			fmt.Fprintf(os.Stderr, "%s %s %s: %s after %.0fs\n", position, w.name(), search, one.text(), one.ElapsedSeconds)
			r.Runs = append(r.Runs, one)
		}
	}
	r.conclude()
	return r
}

// run runs a workload once in a new process. If the run has no result, it saves the log.
func (l *lab) run(ctx context.Context, w workload, search string) run {
	start := time.Now()
	one := run{Search: search}
	log, err := l.execute(ctx, w, &one)
	one.ElapsedSeconds = time.Since(start).Seconds()
	if errors.Is(err, context.DeadlineExceeded) {
		one.Error = "timed out"
	} else if err != nil {
		one.Error = "failed: " + err.Error()
	}
	switch {
	case search == ours && strings.Contains(log, "k1m: left to upstream"):
		one.Error = leftOut
	case search == ours && one.Error == "" && !strings.Contains(log, "k1m: attached"):
		one.Error = "failed: dist-scheduler's node search was not attached"
	}
	if counts := decisionsLine.FindAllStringSubmatch(log, -1); counts != nil {
		one.Decisions = counts[len(counts)-1][1]
	}
	if one.Error != "" {
		name := strings.ReplaceAll(w.name(), "/", "_") + "_" + search + ".log"
		if err := os.WriteFile(filepath.Join(l.logs, name), []byte(log), 0o644); err != nil {
			one.Error += "; " + err.Error()
		}
	}
	return one
}

// decisionsLine is the line in which test/upstream/attach reports the number of decisions.
var decisionsLine = regexp.MustCompile(`k1m: decided so far: (.*)`)

// execute runs the test binary, stores the results in one, and returns the output.
func (l *lab) execute(ctx context.Context, w workload, one *run) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, l.opts.timeout)
	defer cancel()
	folder := filepath.Join(l.copy, perfDirectory, w.Package)
	if err := os.WriteFile(filepath.Join(folder, configFile), w.config, 0o644); err != nil {
		return "", err
	}
	items, err := os.MkdirTemp(l.binaries, "items")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(items)

	cmd := exec.CommandContext(ctx, l.binary(w), "-test.run=^$", "-test.bench=^BenchmarkPerfScheduling$", "-test.benchtime=1ns",
		"-test.timeout=0", "-perf-scheduling-label-filter=", "-data-items-dir="+items, "-v=0")
	cmd.Dir = folder
	attached := map[string]string{stock: "0", ours: "1"}[one.Search]
	cmd.Env = append(os.Environ(), attach.Switch+"="+attached, "ARTIFACTS="+items,
		"PATH="+filepath.Join(l.opts.scratch, "store")+string(filepath.ListSeparator)+os.Getenv("PATH"))
	// The etcd that the test starts is in the same process group, so that it is killed as well.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	log, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return string(log), ctx.Err()
	}
	if err != nil {
		return string(log), err
	}
	return string(log), one.read(items)
}

// read stores the results that scheduler_perf wrote to a folder.
func (one *run) read(folder string) error {
	files, err := filepath.Glob(filepath.Join(folder, "BenchmarkPerfScheduling*.json"))
	if err != nil || len(files) != 1 {
		return fmt.Errorf("found %d result files, want 1", len(files))
	}
	content, err := os.ReadFile(files[0])
	if err != nil {
		return err
	}
	var data struct {
		DataItems []struct {
			Labels map[string]string
			Data   map[string]float64
		}
	}
	if err := json.Unmarshal(content, &data); err != nil {
		return err
	}
	sum, count := 0.0, 0
	for _, item := range data.DataItems {
		switch item.Labels["Metric"] {
		case "SchedulingThroughput":
			sum += item.Data["Average"]
			count++
		case "SchedulingDuration":
			one.Seconds += item.Data["Duration"]
		}
	}
	if count == 0 {
		// scheduler_perf takes one sample per second, so a shorter run has no sample.
		one.Error = "too short to measure"
		return nil
	}
	one.PodsPerSecond = sum / float64(count)
	return nil
}
