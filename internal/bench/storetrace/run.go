package storetrace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/lifecycle"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
)

// ErrClusterExists means that a run cannot create its cluster, because a cluster of this name exists.
var ErrClusterExists = errors.New("cluster exists already")

// minFreeDisk is the free disk space that is required to create the cluster and the trace.
var minFreeDisk = resource.MustParse("1Gi")

// Run creates a cluster with etcd-proxy, executes the operations and removes the cluster. It writes the
// report and returns the result.
func Run(ctx context.Context, dir clusterdir.Dir, o Options, display progress.Display) (result Result, err error) {
	if dir.Exists() {
		return Result{}, fmt.Errorf("cluster %q: %w; remove it with `k1m down --name %s`, or choose another --name",
			dir.Name(), ErrClusterExists, dir.Name())
	}
	proxy, err := component.FindBinary("etcd-proxy")
	if err != nil {
		return Result{}, err
	}
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return Result{}, fmt.Errorf("creating the directory for the report: %w; choose another --out", err)
	}
	traceFile := o.TraceFile
	if traceFile == "" {
		scratch, failure := os.MkdirTemp("", "proxy-trace-")
		if failure != nil {
			return Result{}, failure
		}
		defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
		traceFile = filepath.Join(scratch, "trace.jsonl.zst")
	}
	if _, err := os.Stat(traceFile); err == nil {
		return Result{}, fmt.Errorf("%s exists; move it away or choose another --trace-file", traceFile)
	}
	steps, err := recordTrace(ctx, dir, o, traceFile, display)
	if err != nil {
		return Result{}, err
	}
	return report(ctx, proxy, traceFile, o, steps)
}

// recordTrace creates a cluster, executes the operations and removes the cluster. It returns the duration
// of each step.
func recordTrace(ctx context.Context, dir clusterdir.Dir, o Options, traceFile string, display progress.Display) (steps []Step, err error) {
	flags, err := o.clusterFlags(traceFile)
	if err != nil {
		return nil, err
	}
	defer func() {
		if down := lifecycle.Down(dir, false); !errors.Is(down, clusterdir.ErrUnknown) {
			err = errors.Join(err, down)
		}
	}()
	started := time.Now()
	if _, err := lifecycle.Up(ctx, lifecycle.UpOptions{
		Dir: dir, Flags: flags, Timeout: o.Timeout, MinFree: minFreeDisk, Display: display,
	}); err != nil {
		return nil, err
	}
	steps = append(steps, Step{Name: "control plane and nodes", Seconds: time.Since(started).Seconds()})
	r, err := newRunner(dir, o)
	if err != nil {
		return nil, err
	}
	for _, group := range r.groups() {
		began, task := time.Now(), display.Task(group.name, 0)
		limited, cancel := context.WithTimeout(ctx, o.Timeout)
		err := group.execute(limited)
		cancel()
		if err != nil {
			progress.Fail(ctx, task, err.Error())
			return nil, fmt.Errorf("%s: %w", group.name, err)
		}
		took := time.Since(began)
		task.Done("done")
		steps = append(steps, Step{Name: group.name, Seconds: took.Seconds()})
	}
	return steps, nil
}

// report runs `etcd-proxy report` on the trace, and writes report.html and summary.json.
func report(ctx context.Context, proxy, traceFile string, o Options, steps []Step) (Result, error) {
	page := filepath.Join(o.Out, "report.html")
	text, err := exec.CommandContext(ctx, proxy, "report", traceFile, "-o", "json", "--html", page).Output()
	if err != nil {
		var failed *exec.ExitError
		if errors.As(err, &failed) {
			err = fmt.Errorf("%w: %s", err, failed.Stderr)
		}
		return Result{}, fmt.Errorf("running etcd-proxy report: %w", err)
	}
	result := Result{Nodes: o.Nodes, Replicas: o.Replicas, Objects: o.Objects, Store: o.Store, Steps: steps, Page: page}
	if err := json.Unmarshal(text, &result.Summary); err != nil {
		return Result{}, fmt.Errorf("reading the report of etcd-proxy: %w", err)
	}
	content, err := json.MarshalIndent(struct {
		Run    Result          `json:"run"`
		Report json.RawMessage `json:"report"`
	}{result, text}, "", " ")
	if err != nil {
		return Result{}, err
	}
	return result, os.WriteFile(filepath.Join(o.Out, "summary.json"), append(content, '\n'), 0o644)
}
