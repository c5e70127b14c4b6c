package cli

import (
	"errors"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
)

// benchResult is the result of a benchmark.
type benchResult interface{ Print(io.Writer) }

// benchmark defines a subcommand of `k1m bench`.
type benchmark struct {
	use, short, long, example string
	addFlags                  func(*pflag.FlagSet)
	validate                  func() error
	// brief are the flags with which `k1m bench all` runs the benchmark below medium scale.
	brief []string
	// run runs the benchmark. If it fails, it still returns what was measured until then, or nil if
	// nothing was.
	run func(r benchRun) (benchResult, error)
}

// benchRun is the input of [benchmark.run].
type benchRun struct {
	cmd     *cobra.Command
	display progress.Display
	dir     clusterdir.Dir
	// named is true if the user has set --name.
	named bool
}

// name is the name of the subcommand.
func (b benchmark) name() string { return strings.Fields(b.use)[0] }

// command returns the subcommand. name is the value of --name.
func (b benchmark) command(name *string) *cobra.Command {
	output := outputText
	cmd := &cobra.Command{
		Use: b.use, Short: b.short, Long: b.long, Example: b.example,
		Args: usageArgs(cobra.NoArgs), Annotations: map[string]string{experimentAnnotation: "yes"},
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
		dir, err := clusterDir(*name)
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

// withOutFlag adds the flag --out to a benchmark whose result is an [experiment.Reporter]. If the flag is
// set, the benchmark also writes its result to a directory, in the format of an experiment.
func (b benchmark) withOutFlag(version string) benchmark {
	request := experiment.DefaultRequest()
	addFlags, run := b.addFlags, b.run
	own := pflag.NewFlagSet(b.use, pflag.ContinueOnError)
	addFlags(own)
	b.addFlags = func(fs *pflag.FlagSet) {
		fs.AddFlagSet(own)
		fs.StringVar(&request.Out, "out",
			"", "directory for result.json, index.html, table.md and the plots (default none)")
	}
	b.run = func(r benchRun) (benchResult, error) {
		if request.Out == "" {
			return run(r)
		}
		ctx := r.cmd.Context()
		request.Version, request.Command = version, os.Args[1:]
		result, err := experiment.Begin(ctx, b.name(), b.short, own, request)
		if err != nil {
			return nil, err
		}
		measured, err := run(r)
		if measured == nil {
			return nil, err
		}
		measured.(experiment.Reporter).Report(result)
		return measured, result.End(ctx, request.Out, err)
	}
	return b
}

// checkedResult is a result that contains checks. Err returns an error if a check has failed.
type checkedResult interface {
	benchResult
	Err() error
}

// resultOrError converts the result and the error of a run to the results of [benchmark.run]. If the run
// failed and its result is empty, it returns no result. If the run succeeded, it returns the error of the
// checks.
func resultOrError(result checkedResult, empty bool, err error) (benchResult, error) {
	switch {
	case err != nil && empty:
		return nil, err
	case err == nil:
		err = result.Err()
	}
	return result, err
}
