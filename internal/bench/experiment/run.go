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

// programs are the programs whose versions a result contains.
var programs = []string{"mem_etcd", "etcd", "kube-apiserver", "kwok"}

// Request has the options that all experiments share.
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
	fs.StringVar(&q.Scale, "scale", q.Scale, "small|medium|large or a factor; together with the size of the machine it determines the counts and durations whose flags are not set")
	fs.StringVar(&q.Out, "out", q.Out, "directory for result.json, index.html, table.md and the charts (default results/<UTC>_NAME)")
	fs.Float64Var(&q.MaxErrorRate, "max-error-rate", q.MaxErrorRate, "fraction of failed operations above which the run fails, 0 to 1")
}

// Validate returns the first invalid option as a usage error.
func (q *Request) Validate() error {
	if q.MaxErrorRate < 0 || q.MaxErrorRate > 1 {
		return usage.Errorf("--max-error-rate %g: choose 0 to 1", q.MaxErrorRate)
	}
	_, err := NewScale(q.Scale, machine.This())
	return err
}

// Execute runs an experiment and writes its result, even if the run fails or is interrupted.
// flags are the flags of the options. It returns no result if the run failed before it measured
// anything.
func Execute(ctx context.Context, e Experiment, o Options, flags *pflag.FlagSet, q Request, display progress.Display) (*Result, error) {
	if err := errors.Join(q.Validate(), o.Validate(), e.Missing()); err != nil {
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
		// Nothing was measured. The results of an earlier run in this directory stay.
		return nil, err
	}
	return result, result.End(ctx, q.Out, err)
}

// Begin returns the result of a run that starts now. It creates the output directory first, so
// that a run whose output cannot be written fails immediately and not after an hour.
func Begin(ctx context.Context, name, title string, flags *pflag.FlagSet, q Request) (*Result, error) {
	if err := os.MkdirAll(q.Out, 0o755); err != nil {
		return nil, usage.Errorf("--out %s: %v; choose a writable directory", q.Out, err)
	}
	return newResult(ctx, name, title, flags, q)
}

// End writes the result of a run that has just ended, with the error of the run if it failed.
func (r *Result) End(ctx context.Context, out string, err error) error {
	r.Seconds = time.Since(r.Time).Seconds()
	switch {
	case ctx.Err() != nil:
		r.Partial = true
		err = fmt.Errorf("interrupted; the partial result is in %s", out)
	case err != nil:
		r.Partial, r.Error = true, strings.Join(strings.Fields(err.Error()), " ")
	default:
		err = r.Errors.Err()
	}
	return errors.Join(err, r.Write(out))
}

// Reporter is a result with an output format of its own that can be converted: Report appends its
// tables, charts and ratios to a Result.
type Reporter interface{ Report(*Result) }

// RatiosOf returns the ratios of a result with an output format of its own.
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

func newResult(ctx context.Context, name, title string, flags *pflag.FlagSet, q Request) (*Result, error) {
	m := machine.This()
	scale, err := NewScale(q.Scale, m)
	if err != nil {
		return nil, err
	}
	scale.complete(flags)
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

// versions returns the versions of the programs. A missing program is left out; the experiment
// fails later if it needs that program.
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
