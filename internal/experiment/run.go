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

	"github.com/k8s-1m/k8s-1m/internal/cluster"
	"github.com/k8s-1m/k8s-1m/internal/component"
	"github.com/k8s-1m/k8s-1m/internal/machine"
	"github.com/k8s-1m/k8s-1m/internal/progress"
	"github.com/k8s-1m/k8s-1m/internal/usage"
)

// programs whose versions are part of a result.
var programs = []string{"mem_etcd", "etcd", "kube-apiserver", "kwok"}

// Request is how a run is asked for.
type Request struct {
	Scale        string
	Out          string // folder; empty for results/<UTC>_NAME
	MaxErrorRate float64
	Dir          cluster.Dir
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
	if err := errors.Join(q.Validate(), o.Validate()); err != nil {
		return nil, err
	}
	result, err := newResult(ctx, e, flags, q)
	if err != nil {
		return nil, err
	}
	out := q.Out
	if out == "" {
		out = filepath.Join("results", result.Time.Format("2006-01-02T150405Z")+"_"+e.Name)
	}
	// An experiment of an hour had better know now than in an hour.
	if err := os.MkdirAll(out, 0o755); err != nil {
		return nil, usage.Errorf("--out %s: %v; choose a folder that can be written", out, err)
	}
	run := &Run{Result: result, Display: display, Scale: result.Scale, Dir: q.Dir, Given: q.Given}
	err = o.Run(ctx, run)
	result.Seconds = time.Since(result.Time).Seconds()
	if err != nil && result.empty() {
		// Nothing to keep, and what an earlier run has left in the folder stays.
		return nil, err
	}
	switch {
	case ctx.Err() != nil:
		result.Partial = true
		err = fmt.Errorf("interrupted; what was found until then is in %s", out)
	case err != nil:
		result.Partial, result.Error = true, strings.Join(strings.Fields(err.Error()), " ")
	default:
		err = result.Errors.Err()
	}
	return result, errors.Join(err, result.Write(out))
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

func newResult(ctx context.Context, e Experiment, flags *pflag.FlagSet, q Request) (*Result, error) {
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
		Name: e.Name, Title: e.Short, Time: time.Now().UTC(), Command: "bin/k1m " + strings.Join(q.Command, " "),
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
