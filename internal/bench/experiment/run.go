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

// programs whose versions are part of a result.
var programs = []string{"mem_etcd", "etcd", "kube-apiserver", "kwok"}

// Request is how a run is asked for.
type Request struct {
	Scale        string
	Out          string // folder; empty for results/<UTC>_NAME
	MaxErrorRate float64
	Dir          clusterdir.Dir
	Given        bool // the user named the cluster
	Version      string
	Command      []string // without the program
}

// DefaultRequest is one at medium scale.
func DefaultRequest() Request {
	return Request{Scale: "medium", MaxErrorRate: DefaultMaxErrorRate}
}

// AddFlags binds what all experiments have to flags.
func (q *Request) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&q.Scale, "scale", q.Scale, "small|medium|large or a factor: counts that are not given follow from it and from the machine")
	fs.StringVar(&q.Out, "out", q.Out, "folder for result.json, index.html, table.md and the plots (default results/<UTC>_NAME)")
	fs.Float64Var(&q.MaxErrorRate, "max-error-rate", q.MaxErrorRate, "part of the operations that may end in an error")
}

// Validate reports the first mistake.
func (q *Request) Validate() error {
	if q.MaxErrorRate < 0 || q.MaxErrorRate > 1 {
		return usage.Errorf("--max-error-rate %g: choose 0 to 1", q.MaxErrorRate)
	}
	_, err := NewScale(q.Scale, machine.This())
	return err
}

// Execute runs an experiment and writes its result, also of a run that fails or is
// interrupted. The flags are those of the options.
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
	err = o.Run(ctx, &Run{Result: result, Display: display, Scale: result.Scale, Dir: q.Dir, Given: q.Given})
	if err != nil && result.empty() {
		// Nothing to keep, and what an earlier run has left in the folder stays.
		return nil, err
	}
	return result, result.End(ctx, q.Out, err)
}

// Begin makes the result of a run that begins now, and the folder that it goes to: an
// experiment of an hour had better know now than in an hour.
func Begin(ctx context.Context, name, title string, flags *pflag.FlagSet, q Request) (*Result, error) {
	if err := os.MkdirAll(q.Out, 0o755); err != nil {
		return nil, usage.Errorf("--out %s: %v; choose a folder that can be written", q.Out, err)
	}
	return newResult(ctx, name, title, flags, q)
}

// End writes the result of a run that has just ended, with an error if it failed.
func (r *Result) End(ctx context.Context, out string, err error) error {
	r.Seconds = time.Since(r.Time).Seconds()
	switch {
	case ctx.Err() != nil:
		r.Partial = true
		err = fmt.Errorf("interrupted; what was found until then is in %s", out)
	case err != nil:
		r.Partial, r.Error = true, strings.Join(strings.Fields(err.Error()), " ")
	default:
		err = r.Errors.Err()
	}
	return errors.Join(err, r.Write(out))
}

// Reporter is the result of a command that has a form of its own, and can tell it as an
// experiment does.
type Reporter interface{ Report(*Result) }

// RatiosOf what such a command has found.
func RatiosOf(found Reporter) []Ratio {
	told := &Result{Errors: NewTally(1)}
	found.Report(told)
	return told.Ratios
}

// empty says that nothing was found.
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

// versions of the programs; one that is missing is left out, and shows when it is needed.
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
