// Package cli is k1m's command line: one file a subcommand.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/lifecycle"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

// Main runs k1m and returns its exit code.
func Main(version string, args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	// A second Ctrl-C ends k1m at once.
	context.AfterFunc(ctx, stop)

	// What client-go says of its retries would tear the progress display.
	klog.SetLogger(logr.Discard())

	root := newRoot(version)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	report(stderr, err)
	if errors.Is(err, usage.Err) {
		return exitUsage
	}
	return exitFailure
}

func newRoot(version string) *cobra.Command {
	root := &cobra.Command{
		Use:   "k1m",
		Short: "Run a real Kubernetes control plane with very many simulated nodes",
		Long: `k1m runs a real Kubernetes control plane on this machine: a store, kube-apiserver,
kube-controller-manager, a scheduler, and kwok, which simulates the nodes.`,
		Example: `  k1m up --nodes 1000               bring up a cluster of 1,000 nodes
  k1m kubectl get nodes             talk to it
  k1m pods create --count 1000      fill it
  k1m status                        see how it does
  k1m down                          stop it and remove its files`,
		Version:       version,
		Args:          usageArgs(cobra.NoArgs),
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		var invalid *pflag.InvalidValueError
		if errors.As(err, &invalid) && errors.Is(err, strconv.ErrSyntax) {
			err = fmt.Errorf("--%s: %q is not a number", invalid.GetFlag().Name, invalid.GetValue())
		}
		return usage.Errorf("%v; see `%s --help`", err, cmd.CommandPath())
	})
	root.CompletionOptions.HiddenDefaultCmd = true
	name := root.PersistentFlags().String("name", clusterdir.DefaultName, "name of the cluster")
	root.AddCommand(
		newUp(name), newDown(name), newStatus(name), newTop(name), newLogs(name),
		newKubectl(name), newKubeconfig(name), newNodes(name), newPods(name),
		newVerify(name), newBench(name, version), newPlan(name), newMetrics(name), newSupervise(name),
	)
	return root
}

// dirOf finds the folder of the cluster that --name names.
func dirOf(name string) (clusterdir.Dir, error) {
	if err := clusterdir.ValidateName(name); err != nil {
		return clusterdir.Dir{}, err
	}
	return clusterdir.NewDir(name)
}

// existing is dirOf for a cluster that must exist.
func existing(name string) (clusterdir.Dir, clusterdir.Config, error) {
	dir, err := dirOf(name)
	if err != nil {
		return clusterdir.Dir{}, clusterdir.Config{}, err
	}
	config, err := clusterdir.Load(dir)
	return dir, config, err
}

// usageArgs makes an error about arguments one of usage.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usage.Errorf("%v; see `%s --help`", err, cmd.CommandPath())
		}
		return nil
	}
}

// report prints one line, and what the logs say when a component is to blame.
func report(stderr io.Writer, err error) {
	fmt.Fprintf(stderr, "k1m: %s\n", strings.Join(strings.Fields(err.Error()), " "))
	var failed *lifecycle.ComponentError
	if !errors.As(err, &failed) {
		return
	}
	if failed.StoreError != "" {
		fmt.Fprintf(stderr, "  from the store's log: %s\n", failed.StoreError)
	}
	for _, line := range failed.LogTail {
		fmt.Fprintf(stderr, "  %s\n", line)
	}
}
