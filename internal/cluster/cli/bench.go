package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
)

func newBench(name *string, version string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure control planes, stores and schedulers",
		Args:  usageArgs(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, e := range experiments() {
		cmd.AddCommand(newExperiment(e, name, version))
	}
	for _, b := range append(reporters(version), newBenchAll(version)) {
		cmd.AddCommand(b.command(name))
	}
	cmd.AddCommand(newBenchList(cmd), newBenchRender())
	return cmd
}

// reporters have a form of their own in which they report.
func reporters(version string) []benchmark {
	return []benchmark{
		newBenchMillion().keptIn(version), newBenchSchedule().keptIn(version), newBenchIntake().keptIn(version),
		newBenchShards().keptIn(version), newBenchProxyTrace(),
	}
}

// newBenchList names what its parent has.
func newBenchList(parent *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the experiments",
		Args:  usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 4, 2, ' ', 0)
			for _, e := range parent.Commands() {
				if e.Annotations[isExperiment] != "" {
					fmt.Fprintf(table, "%s\t%s\n", e.Name(), e.Short)
				}
			}
			return table.Flush()
		},
	}
}

// isExperiment is an annotation of commands that the list names.
const isExperiment = "experiment"

// findings are what a benchmark has found.
type findings interface{ Print(io.Writer) }

// benchmark is a command that measures: one line, its flags, and what it does.
type benchmark struct {
	use, short, long, example string
	addFlags                  func(*pflag.FlagSet)
	validate                  func() error
	// brief are the flags of its short form.
	brief []string
	// run returns what it has found even if it fails, or nil if that is nothing.
	run func(r benchRun) (findings, error)
}

// benchRun is what a benchmark is given.
type benchRun struct {
	cmd     *cobra.Command
	display progress.Display
	dir     clusterdir.Dir
	// named: the user chose the cluster.
	named bool
}

// name is how it is called.
func (b benchmark) name() string { return strings.Fields(b.use)[0] }

func (b benchmark) command(name *string) *cobra.Command {
	output := outputText
	cmd := &cobra.Command{
		Use: b.use, Short: b.short, Long: b.long, Example: b.example,
		Args: usageArgs(cobra.NoArgs), Annotations: map[string]string{isExperiment: "yes"},
	}
	b.addFlags(cmd.Flags())
	addOutputFlag(cmd, &output)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := errors.Join(validateOutput(output), b.validate()); err != nil {
			return err
		}
		named := cmd.Flag("name").Changed
		if !named {
			*name = experiment.DefaultCluster
		}
		dir, err := dirOf(*name)
		if err != nil {
			return err
		}
		display := progress.New(cmd.ErrOrStderr())
		result, err := b.run(benchRun{cmd: cmd, display: display, dir: dir, named: named})
		display.Close()
		if result == nil {
			return err
		}
		return errors.Join(printAs(cmd, output, result, result.Print), err)
	}
	return cmd
}

// keptIn has what a benchmark finds, which is a Reporter, written to a folder as well, as an
// experiment's is, if --out names one.
func (b benchmark) keptIn(version string) benchmark {
	request := experiment.DefaultRequest()
	addFlags, run := b.addFlags, b.run
	own := pflag.NewFlagSet(b.use, pflag.ContinueOnError)
	addFlags(own)
	b.addFlags = func(fs *pflag.FlagSet) {
		fs.AddFlagSet(own)
		fs.StringVar(&request.Out, "out", "", "folder for result.json, index.html, table.md and the plots (default none)")
	}
	b.run = func(r benchRun) (findings, error) {
		if request.Out == "" {
			return run(r)
		}
		ctx := r.cmd.Context()
		request.Version, request.Command = version, os.Args[1:]
		result, err := experiment.Begin(ctx, b.name(), b.short, own, request)
		if err != nil {
			return nil, err
		}
		found, err := run(r)
		if found == nil {
			return nil, err
		}
		found.(experiment.Reporter).Report(result)
		return found, result.End(ctx, request.Out, err)
	}
	return b
}

// judged is a report that knows what must not be.
type judged interface {
	findings
	Err() error
}

// judge makes what a run returned into what its command does: a run that failed before it
// found anything has no report, and one that ended well may have found what must not be.
func judge(result judged, empty bool, err error) (findings, error) {
	switch {
	case err != nil && empty:
		return nil, err
	case err == nil:
		err = result.Err()
	}
	return result, err
}
