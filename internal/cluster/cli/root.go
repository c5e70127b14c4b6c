// Package cli is the command line of k1m. [Main] runs it.
//
// Each command has a file with its name, which defines its flags and its help: `k1m up` is in up.go,
// `k1m bench schedule` in bench_schedule.go. To add a command, write such a file with a function that
// returns the command, and call the function in newRoot in root.go. Some flags are defined in the package
// that uses them. For example, clusterdir.Settings.AddFlags defines the flags of `k1m up`.
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

// Main runs k1m and returns its exit code: 0 for success, 1 for a failure, 2 for invalid usage.
func Main(version string, args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	// Restore the default signal handling after the first Ctrl-C, so that a second Ctrl-C terminates
	// k1m immediately.
	context.AfterFunc(ctx, stop)

	// Discard the log messages of client-go about retries, which would disturb the progress display.
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
		Short: "Run a real Kubernetes control plane with up to a million simulated nodes",
		Long: `k1m runs Kubernetes clusters on this machine. A cluster has a real control plane (store,
kube-apiserver, kube-controller-manager and scheduler) and up to a million nodes, which kwok or node-sim simulates.
k1m also measures and compares stores and schedulers.`,
		Example: `  # Start a cluster with 1,000 nodes
  k1m up --nodes 1000

  # Use the cluster
  k1m kubectl get nodes

  # Create 1,000 pods
  k1m pods create --count 1000

  # Show the state of the cluster
  k1m status

  # Stop the cluster and remove its files
  k1m down`,
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
	addGroup(root, "Start and stop clusters:", newUp(name), newDown(name), newSnapshot(name, version), newStore(name))
	addGroup(root, "Use a cluster:", newKubectl(name), newKubeconfig(name), newNodes(name), newPods(name), newCertificates())
	addGroup(root, "Observe a cluster:", newStatus(name), newTop(name), newLogs(name), newMetrics(name), newVerify(name))
	addGroup(root, "Measure and plan:", newBench(name, version), newPlan(name))
	addGroup(root, "Networks:", newNetwork())
	root.AddCommand(newSupervise(name))
	return root
}

// addGroup adds commands to the root command, under a heading of its help.
func addGroup(root *cobra.Command, title string, commands ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: title, Title: title})
	for _, command := range commands {
		command.GroupID = title
		root.AddCommand(command)
	}
}

// clusterDir returns the directory of the cluster --name. The cluster need not exist.
func clusterDir(name string) (clusterdir.Dir, error) {
	if err := clusterdir.ValidateName(name); err != nil {
		return clusterdir.Dir{}, err
	}
	return clusterdir.NewDir(name)
}

// loadCluster returns the directory and the configuration of the cluster --name. It returns an error if
// the cluster does not exist.
func loadCluster(name string) (clusterdir.Dir, clusterdir.Config, error) {
	dir, err := clusterDir(name)
	if err != nil {
		return clusterdir.Dir{}, clusterdir.Config{}, err
	}
	config, err := clusterdir.Load(dir)
	return dir, config, err
}

// usageArgs returns an argument check that converts the errors of another check to usage errors.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usage.Errorf("%v; see `%s --help`", err, cmd.CommandPath())
		}
		return nil
	}
}

// report prints an error as one line. If a component failed, it also prints the end of the component's
// log.
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
