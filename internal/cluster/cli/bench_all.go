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

// allOptions are the options of `k1m bench all`.
type allOptions struct {
	request experiment.Request
	only    []string
	// compare is a file with stored ratios, and record the file to which the ratios of this run are
	// written. Both may be "".
	compare, record string
	band            float64
}

func newBenchAll(version string) benchmark {
	o := &allOptions{request: experiment.DefaultRequest(), band: experiment.DefaultTolerance}
	o.request.Scale = "small"
	return benchmark{
		use:   "all",
		short: "Run all experiments in a short form and check their ratios for regressions",
		long: `Run all experiments in a short form, one after the other, and compare their ratios with the ratios
in the file --compare. A ratio is the figure of a component of this project divided by that of the
stock component.

The command fails if an experiment fails, or if a ratio of CPU time or memory is worse than the
stored ratio by more than --band. Other load on the machine can cause that in a short run.
Therefore the experiment is then repeated, and only a ratio that is worse in both runs counts. Ratios of rates and latencies are shown but not checked, because
they vary too much between short runs.`,
		example: `  k1m bench all --compare experiments/short-ratios.json
  k1m bench all --only nodes-and-pods,store-put --record ratios.json`,
		addFlags: o.addFlags,
		validate: o.validate,
		run:      func(r benchRun) (benchResult, error) { return o.run(r, version) },
	}
}

func (o *allOptions) addFlags(fs *pflag.FlagSet) {
	o.request.AddFlags(fs)
	fs.Lookup("out").Usage = "directory for the results, with a subdirectory for each experiment (default results/<UTC>_all)"
	fs.StringSliceVar(&o.only, "only", nil, "experiments to run (default all)")
	fs.StringVar(&o.compare, "compare", "", "file with stored ratios to compare with")
	fs.StringVar(&o.record, "record",
		"", "file to which the ratios of this run are written; ratios of other experiments in this file are kept")
	fs.Float64Var(&o.band, "band", o.band, "allowed regression of a ratio, as a fraction of the stored ratio")
}

func (o *allOptions) validate() error {
	var names []string
	for _, entry := range o.entries("") {
		names = append(names, entry.name)
	}
	for _, name := range o.only {
		if !slices.Contains(names, name) {
			return usage.Errorf("--only %q: no such experiment; choose one of %s", name, strings.Join(names, ", "))
		}
	}
	if o.band < 0 {
		return usage.Errorf("--band %g: choose 0 or more", o.band)
	}
	return o.request.Validate()
}

func (o *allOptions) run(r benchRun, version string) (benchResult, error) {
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
	results, now := &allResults{Out: out, Failed: map[string]string{}}, experiment.Baseline{}
	for _, entry := range o.entries(version) {
		if len(o.only) > 0 && !slices.Contains(o.only, entry.name) {
			continue
		}
		if missing := entry.checkNeeds(); missing != nil && len(o.only) == 0 {
			fmt.Fprintf(r.cmd.ErrOrStderr(), "==> %s: skipped: %v\n", entry.name, missing)
			continue
		}
		ratios, changes, err := o.compareEntry(r, entry, out, stored)
		if r.cmd.Context().Err() != nil {
			return results, err
		}
		if err != nil {
			results.Failed[entry.name] = err.Error()
		}
		if len(ratios) > 0 {
			now[entry.name] = ratios
		}
		results.Changes = append(results.Changes, changes...)
	}
	return results, errors.Join(o.recordRatios(now), results.err())
}

// compareEntry runs one entry and compares its ratios with the stored ones. If a ratio is worse, it runs the
// entry once more.
func (o *allOptions) compareEntry(
	r benchRun, entry benchEntry, out string, stored experiment.Baseline,
) (ratios []experiment.Ratio, changes []experiment.Change, err error) {
	fmt.Fprintf(r.cmd.ErrOrStderr(), "==> %s\n", entry.name)
	ratios, err = entry.run(r, filepath.Join(out, entry.name))
	changes = stored.Changes(entry.name, ratios, o.band)
	if worse := experiment.Worse(changes); err == nil && worse > 0 {
		fmt.Fprintf(r.cmd.ErrOrStderr(), "==> %s: %d ratios are worse; repeating the experiment\n", entry.name, worse)
		ratios, err = entry.run(r, filepath.Join(out, entry.name+"-repeated"))
		changes = experiment.Confirm(changes, stored.Changes(entry.name, ratios, o.band))
	}
	return ratios, changes, err
}

// benchEntry is one experiment or benchmark of `k1m bench all`.
type benchEntry struct {
	name string
	// checkNeeds returns an error if a prerequisite is missing. The entry is then skipped, unless --only
	// selects it.
	checkNeeds func() error
	// run writes the result to the directory out, and returns its ratios.
	run func(r benchRun, out string) ([]experiment.Ratio, error)
}

// entries returns the entries of all experiments and custom benchmarks.
func (o *allOptions) entries(version string) (all []benchEntry) {
	for _, e := range experiments() {
		all = append(all, benchEntry{e.Name, e.CheckNeeds, func(r benchRun, out string) ([]experiment.Ratio, error) {
			return o.runExperiment(r, e, out, version)
		}})
	}
	for _, b := range customBenchmarks(version) {
		all = append(all, benchEntry{b.name(), func() error { return nil }, func(r benchRun, out string) ([]experiment.Ratio, error) {
			return o.runReporter(r, b, out)
		}})
	}
	return all
}

func (o *allOptions) runExperiment(r benchRun, e experiment.Experiment, out, version string) ([]experiment.Ratio, error) {
	request := o.request
	request.Out, request.Dir, request.Named, request.Version, request.Command = out, r.dir, r.named, version, os.Args[1:]
	options, own := e.New(), pflag.NewFlagSet(e.Name, pflag.ContinueOnError)
	options.AddFlags(own)
	result, err := experiment.Execute(r.cmd.Context(), e, options, own, request, r.display)
	if result == nil {
		return nil, err
	}
	return result.Ratios, err
}

// runReporter runs a custom benchmark. If --scale is less than medium, it runs the short form.
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
	result, err := b.run(r)
	if reporter, ok := result.(experiment.Reporter); ok {
		return experiment.RatiosOf(reporter), err
	}
	return nil, err
}

// recordRatios writes the ratios of this run to the file --record, if the flag is set. It keeps ratios of
// other experiments in this file.
func (o *allOptions) recordRatios(now experiment.Baseline) error {
	if o.record == "" {
		return nil
	}
	all := experiment.Baseline{}
	if _, err := os.Stat(o.record); err == nil {
		if all, err = experiment.ReadBaseline(o.record); err != nil {
			return err
		}
	}
	maps.Copy(all, now)
	return all.Write(o.record)
}

// allResults is the result of `k1m bench all`.
type allResults struct {
	Out     string              `json:"out"`
	Changes []experiment.Change `json:"changes"`
	// Failed maps the names of failed experiments to their errors.
	Failed map[string]string `json:"failed"`
}

// Print writes the results as text.
func (a *allResults) Print(w io.Writer) {
	experiment.PrintChanges(w, a.Changes)
	for _, name := range slices.Sorted(maps.Keys(a.Failed)) {
		fmt.Fprintf(w, "%s: %s\n", name, a.Failed[name])
	}
	fmt.Fprintf(w, "The results are in %s.\n", a.Out)
}

// err returns an error if an experiment failed or a ratio is worse.
func (a *allResults) err() error {
	worse := experiment.Worse(a.Changes)
	if worse == 0 && len(a.Failed) == 0 {
		return nil
	}
	return fmt.Errorf("%d ratios are worse than the stored ratios, and %d experiments failed; see the output above",
		worse, len(a.Failed))
}
