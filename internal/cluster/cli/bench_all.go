package cli

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/util/machine"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// allOptions are those of a run of all experiments.
type allOptions struct {
	request         experiment.Request
	only            []string
	compare, record string
	band            float64
}

func newBenchAll(version string) benchmark {
	o := &allOptions{request: experiment.DefaultRequest(), band: experiment.DefaultBand}
	o.request.Scale = "small"
	return benchmark{
		use:   "all",
		short: "Run all experiments in a short form, and compare their ratios with stored ones",
		long: `Run all experiments, one after the other, in a short form, and hold the ratios of this run
(ours ÷ peer), where one compares with a stock component, against those of a file. The command
fails if one of CPU time or memory is worse by more than --band, or if an experiment
fails. Ratios of rates and latencies are shown and not held: those of a short run vary
too much.`,
		example: `  k1m bench all --compare experiments/short-ratios.json
  k1m bench all --only nodes-and-pods,store-put --record ratios.json`,
		addFlags: o.addFlags,
		validate: o.validate,
		run:      func(r benchRun) (findings, error) { return o.run(r, version) },
	}
}

func (o *allOptions) addFlags(fs *pflag.FlagSet) {
	o.request.AddFlags(fs)
	fs.Lookup("out").Usage = "folder with one for each experiment (default results/<UTC>_all)"
	fs.StringSliceVar(&o.only, "only", nil, "these experiments, and no other")
	fs.StringVar(&o.compare, "compare", "", "file of ratios to compare with")
	fs.StringVar(&o.record, "record", "", "file to which the ratios of this run are written; others that it has stay")
	fs.Float64Var(&o.band, "band", o.band, "how much worse a ratio may be, as a part of the stored one")
}

func (o *allOptions) validate() error {
	var names []string
	for _, one := range o.contestants("") {
		names = append(names, one.name)
	}
	for _, name := range o.only {
		if !slices.Contains(names, name) {
			return usage.Errorf("--only %q: no such experiment; choose of %s", name, strings.Join(names, ", "))
		}
	}
	if o.band < 0 {
		return usage.Errorf("--band %g: choose 0 or more", o.band)
	}
	return o.request.Validate()
}

func (o *allOptions) run(r benchRun, version string) (findings, error) {
	stored := experiment.Baseline{}
	if o.compare != "" {
		var err error
		if stored, err = experiment.ReadBaseline(o.compare); err != nil {
			return nil, err
		}
	}
	out := o.request.Out
	if out == "" {
		out = filepath.Join("results", time.Now().UTC().Format("2006-01-02T150405Z")+"_all")
	}
	found, now := &allFindings{Out: out, Failed: map[string]string{}}, experiment.Baseline{}
	for _, one := range o.contestants(version) {
		if len(o.only) > 0 && !slices.Contains(o.only, one.name) {
			continue
		}
		if missing := one.missing(); missing != nil && len(o.only) == 0 {
			fmt.Fprintf(r.cmd.ErrOrStderr(), "==> %s: left out: %v\n", one.name, missing)
			continue
		}
		fmt.Fprintf(r.cmd.ErrOrStderr(), "==> %s\n", one.name)
		ratios, err := one.run(r, filepath.Join(out, one.name))
		if r.cmd.Context().Err() != nil {
			return found, err
		}
		if err != nil {
			found.Failed[one.name] = err.Error()
		}
		if len(ratios) > 0 {
			now[one.name] = ratios
		}
		found.Changes = append(found.Changes, stored.Changes(one.name, ratios, o.band)...)
	}
	return found, errors.Join(o.keep(now), found.err())
}

// contestant is one of those that a run of all consists of.
type contestant struct {
	name string
	// missing is what it cannot do without, and is not here.
	missing func() error
	// run has its result in a folder, and returns its ratios.
	run func(r benchRun, out string) ([]experiment.Ratio, error)
}

func (o *allOptions) contestants(version string) (all []contestant) {
	for _, e := range experiments() {
		all = append(all, contestant{e.Name, e.Missing, func(r benchRun, out string) ([]experiment.Ratio, error) {
			return o.runExperiment(r, e, out, version)
		}})
	}
	for _, b := range reporters(version) {
		all = append(all, contestant{b.name(), func() error { return nil }, func(r benchRun, out string) ([]experiment.Ratio, error) {
			return o.runReporter(r, b, out)
		}})
	}
	return all
}

func (o *allOptions) runExperiment(r benchRun, e experiment.Experiment, out, version string) ([]experiment.Ratio, error) {
	request := o.request
	request.Out, request.Dir, request.Given, request.Version, request.Command = out, r.dir, r.named, version, os.Args[1:]
	options, own := e.New(), pflag.NewFlagSet(e.Name, pflag.ContinueOnError)
	options.AddFlags(own)
	result, err := experiment.Execute(r.cmd.Context(), e, options, own, request, r.display)
	if result == nil {
		return nil, err
	}
	return result.Ratios, err
}

// runReporter in its short form, unless all are to be of medium size or larger.
func (o *allOptions) runReporter(r benchRun, b benchmark, out string) ([]experiment.Ratio, error) {
	scale, err := experiment.NewScale(o.request.Scale, machine.Machine{})
	if err != nil {
		return nil, err
	}
	args := []string{"--out", out}
	if scale.Factor < 1 {
		args = append(args, b.brief...)
	}
	flags := pflag.NewFlagSet(b.name(), pflag.ContinueOnError)
	b.addFlags(flags)
	if err := errors.Join(flags.Parse(args), b.validate()); err != nil {
		return nil, err
	}
	found, err := b.run(r)
	if reporter, is := found.(experiment.Reporter); is {
		return experiment.RatiosOf(reporter), err
	}
	return nil, err
}

// keep writes the ratios of this run, if that was asked for.
func (o *allOptions) keep(now experiment.Baseline) error {
	if o.record == "" {
		return nil
	}
	all, err := experiment.ReadBaseline(o.record)
	if err != nil {
		all = experiment.Baseline{}
	}
	maps.Copy(all, now)
	return all.Write(o.record)
}

// allFindings are what a run of all experiments has found.
type allFindings struct {
	Out     string              `json:"out"`
	Changes []experiment.Change `json:"changes"`
	// Failed experiments, and why.
	Failed map[string]string `json:"failed"`
}

// Print writes them for people.
func (f *allFindings) Print(w io.Writer) {
	experiment.PrintChanges(w, f.Changes)
	for _, name := range slices.Sorted(maps.Keys(f.Failed)) {
		fmt.Fprintf(w, "%s: %s\n", name, f.Failed[name])
	}
	fmt.Fprintf(w, "results are in %s\n", f.Out)
}

func (f *allFindings) err() error {
	worse := 0
	for _, c := range f.Changes {
		if c.Worse {
			worse++
		}
	}
	if worse == 0 && len(f.Failed) == 0 {
		return nil
	}
	return fmt.Errorf("%d ratios are worse than stored, %d experiments failed; see above", worse, len(f.Failed))
}
