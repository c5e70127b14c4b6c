package experiment

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/util/machine"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// programs are the programs whose versions a result contains, in addition to k1m.
var programs = []string{"mem_etcd", "etcd", "kube-apiserver", "kwok", "node-sim", "kube-gateway"}

// Request contains the options that all experiments share.
type Request struct {
	Scale        string
	Out          string // directory of the result; empty for results/<UTC>_NAME
	MaxErrorRate float64
	Dir          clusterdir.Dir
	Named        bool // the user selected the cluster with --name
	Version      string
	Command      []string // arguments of the command line, without the program
}

// DefaultRequest returns a request at medium scale.
func DefaultRequest() Request {
	return Request{Scale: "medium", MaxErrorRate: DefaultMaxErrorRate}
}

// AddFlags binds the common options to flags.
func (q *Request) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&q.Scale, "scale", q.Scale,
		"small|medium|large or a factor; counts and durations whose flags are not set follow from this scale, and "+
			"counts also from the size of the machine")
	fs.StringVar(&q.Out, "out", q.Out,
		"directory for result.json, index.html, table.md and the charts (default results/<UTC>_NAME)")
	fs.Float64Var(&q.MaxErrorRate, "max-error-rate", q.MaxErrorRate,
		"fraction of failed operations above which the run fails, 0 to 1")
}

// Validate returns the first invalid option as a usage error.
func (q *Request) Validate() error {
	if q.MaxErrorRate < 0 || q.MaxErrorRate > 1 {
		return usage.Errorf("--max-error-rate %g: choose 0 to 1", q.MaxErrorRate)
	}
	_, err := NewScale(q.Scale, machine.This())
	return err
}

// Execute runs an experiment and writes its result, also if the run fails or is interrupted. flags
// contain the flags that o.AddFlags added. If the run fails before it has measured anything, Execute
// writes nothing and returns no result.
func Execute(ctx context.Context, e Experiment, o Options, flags *pflag.FlagSet, q Request, display progress.Display) (*Result, error) {
	if err := errors.Join(q.Validate(), o.Validate(), e.CheckNeeds()); err != nil {
		return nil, err
	}
	if q.Out == "" {
		q.Out = filepath.Join("results", time.Now().UTC().Format("2006-01-02T150405Z")+"_"+e.Name)
	}
	result, err := Begin(ctx, e.Name, e.Short, flags, q)
	if err != nil {
		return nil, err
	}
	err = o.Run(ctx, &Run{Result: result, Display: display, Scale: result.Scale, Dir: q.Dir, Named: q.Named})
	if err != nil && result.empty() {
		// Do not overwrite the result of an earlier run in this directory.
		return nil, err
	}
	return result, result.End(ctx, q.Out, err)
}

// Begin returns the empty result of a run that starts now. It also creates the output directory, so that
// the run fails before it measures if the directory cannot be created.
func Begin(ctx context.Context, name, title string, flags *pflag.FlagSet, q Request) (*Result, error) {
	if err := os.MkdirAll(q.Out, 0o755); err != nil {
		return nil, usage.Errorf("--out %s: %v; choose a writable directory", q.Out, err)
	}
	return newResult(ctx, name, title, flags, q)
}

// End writes the result of a run that has just ended. err is the error of the run, or nil. End returns an
// error if the run failed or was interrupted, if too many operations failed, if an objective is missed that
// must be met, or if the result cannot be written.
func (r *Result) End(ctx context.Context, out string, err error) error {
	r.Seconds = time.Since(r.Time).Seconds()
	switch {
	case ctx.Err() != nil:
		r.Partial = true
		err = fmt.Errorf("interrupted; the partial result is in %s", out)
	case err != nil:
		r.Partial, r.Error = true, strings.Join(strings.Fields(err.Error()), " ")
	default:
		err = errors.Join(r.Errors.Err(), r.missed())
	}
	return errors.Join(err, r.Write(out))
}

// Reporter is a result with its own output format. Report appends its tables, charts and ratios to a
// [Result].
type Reporter interface{ Report(*Result) }

// RatiosOf returns the ratios that a reporter appends.
func RatiosOf(reporter Reporter) []Ratio {
	result := &Result{Errors: NewTally(1)}
	reporter.Report(result)
	return result.Ratios
}

// empty reports whether the result contains no measurement.
func (r *Result) empty() bool {
	for _, t := range r.Tables {
		if len(t.Rows) > 0 {
			return false
		}
	}
	return len(r.Series)+len(r.Notes) == 0
}

// newResult sets the flags that follow from the scale, and returns an empty result.
func newResult(ctx context.Context, name, title string, flags *pflag.FlagSet, q Request) (*Result, error) {
	m := machine.This()
	scale, err := NewScale(q.Scale, m)
	if err != nil {
		return nil, err
	}
	scale.setUnsetFlags(flags)
	parameters := map[string]string{}
	flags.VisitAll(func(flag *pflag.Flag) {
		if value := flag.Value.String(); value != "" {
			parameters[flag.Name] = value
		}
	})
	return &Result{
		Name: name, Title: title, Time: time.Now().UTC(), Command: "bin/k1m " + strings.Join(q.Command, " "),
		Machine: m, Versions: versions(ctx, q.Version), Scale: scale, Parameters: parameters,
		Tables: []*Table{}, Series: []Series{}, Markers: []Marker{}, Verdicts: []Verdict{}, Ratios: []Ratio{}, Notes: []string{},
		Errors: NewTally(q.MaxErrorRate),
	}, nil
}

// versions returns the versions of k1m and of the programs that can be found. An experiment that needs a
// missing program fails later.
func versions(ctx context.Context, own string) map[string]string {
	found := map[string]string{"k1m": own}
	for _, program := range programs {
		path, err := component.FindBinary(program)
		if err != nil {
			continue
		}
		if output, err := exec.CommandContext(ctx, path, "--version").Output(); err == nil {
			line, _, _ := strings.Cut(string(output), "\n")
			found[program] = line
		}
	}
	return found
}
