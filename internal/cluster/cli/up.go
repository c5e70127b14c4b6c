package cli

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/lifecycle"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

const defaultTimeout = 2 * time.Minute

func newUp(name *string) *cobra.Command {
	settings := clusterdir.DefaultSettings()
	settings.Profile = clusterdir.ProfileAuto
	timeout := defaultTimeout
	minFree, seedStore := "512Mi", false
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a cluster and wait until its nodes are ready",
		Long: `Start a cluster and wait until its nodes are ready.

The settings are saved. After "k1m down --keep-data", "k1m up" without flags starts the same
cluster with its data again. If the cluster is already running, the command waits until it is
healthy, and creates missing nodes.

With --seed-store, the nodes and their Leases are written directly into the store before the API
servers start. This is the fast way to a cluster with very many nodes. The store must be empty, so the
flag is only for the first "k1m up" of a cluster; it is not saved.

A new cluster of 10,000 nodes or more gets a profile: settings that so many nodes need, such as
node-sim, kube-gateway with its node path, a longer grace period and --seed-store. The command prints
each of them with its reason. Flags that you set win over the profile, and --profile none turns it
off.

If the command fails or is interrupted before the cluster is complete, it stops all processes
that it started.`,
		Example: `  # Start the cluster "k1m" with 1,000 nodes
  k1m up --nodes 1000

  # Start a cluster with 100,000 nodes, with the settings that these need
  k1m up --nodes 100000

  # The same with nodes of kwok, and without a profile
  k1m up --nodes 100000 --profile none --seed-store --timeout 10m --controller-manager-arg node-monitor-grace-period=1h

  # Start a cluster whose store syncs every write to disk
  k1m up --name safe --wal-mode fsync --nodes 100

  # Start a cluster with etcd and two API servers
  k1m up --name peer --store etcd --apiservers 2

  # Start a cluster that keeps pods, events and Leases in stores of their own
  k1m up --name separate --store-for pods,events,leases=own

  # Start three API servers behind a kube-gateway
  k1m up --name gateway --apiservers 3 --gateway

  # Pass flags and environment variables to kube-apiserver
  k1m up --apiserver-arg event-ttl=5m --apiserver-env GOGC=200`,
		Args: usageArgs(cobra.NoArgs),
	}
	settings.AddFlags(cmd.Flags())
	cmd.Flags().DurationVar(&timeout, "timeout", timeout, "time limit until all components are ready; also the time without a further ready node after which the command fails")
	cmd.Flags().StringVar(&minFree, "min-free-disk", minFree, "minimum free disk space that is required to start")
	cmd.Flags().BoolVar(&seedStore, "seed-store", seedStore, "write the nodes of --nodes and their Leases directly into the store, which must be empty, before the API servers start")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		dir, err := clusterDir(*name)
		if err != nil {
			return err
		}
		required, err := resource.ParseQuantity(minFree)
		if err != nil {
			return usage.Errorf("--min-free-disk %q: not a quantity; write it like 512Mi or 10Gi", minFree)
		}
		if timeout <= 0 {
			return usage.Errorf("--timeout %s: must be more than 0", timeout)
		}
		if !dir.Exists() && !cmd.Flags().Changed("profile") {
			// An existing cluster keeps what was saved.
			if err := cmd.Flags().Set("profile", clusterdir.ProfileAuto); err != nil {
				return err
			}
		}
		started := time.Now()
		display := progress.New(cmd.OutOrStdout())
		result, err := lifecycle.Up(cmd.Context(), lifecycle.UpOptions{
			Dir: dir, Flags: cmd.Flags(), Timeout: timeout, MinFree: required, Display: display, SeedStore: seedStore,
			AnnounceProfile: func(p clusterdir.AppliedProfile) { printProfile(cmd.OutOrStdout(), p) },
		})
		display.Close()
		if err != nil {
			return err
		}
		printUp(cmd.OutOrStdout(), dir, result, time.Since(started))
		return nil
	}
	return cmd
}

// printProfile prints what a profile sets, and why.
func printProfile(w io.Writer, p clusterdir.AppliedProfile) {
	fmt.Fprintf(w, "Profile %s, for %d nodes and more, sets (--profile none turns it off):\n", p.Name, p.Nodes)
	for _, change := range p.Changes {
		fmt.Fprintf(w, "  %s: %s\n", change, change.Reason)
	}
	fmt.Fprintln(w)
}

// printUp prints the result and the next commands. They start with the program name that the user typed.
func printUp(w io.Writer, dir clusterdir.Dir, result lifecycle.UpResult, took time.Duration) {
	flag := ""
	if dir.Name() != clusterdir.DefaultName {
		flag = " --name " + dir.Name()
	}
	how := fmt.Sprintf("is up after %.1fs", took.Seconds())
	if result.AlreadyRan {
		how = "is already running and healthy"
	}
	if result.OtherProfile != "" {
		fmt.Fprintf(w, "The profile %s is for so many nodes; a running cluster keeps its settings. To use it, run `k1m down --keep-data%s` and `k1m up%s`.\n\n",
			result.OtherProfile, flag, flag)
	}
	k1m := os.Args[0]
	fmt.Fprintf(w, "\nCluster %q %s, with %d nodes on %s.\n\n",
		dir.Name(), how, result.Nodes, result.Config.Settings.DescribeStore())
	fmt.Fprintf(w, "  %s kubectl%s get nodes\n", k1m, flag)
	fmt.Fprintf(w, "  export KUBECONFIG=$(%s kubeconfig --path%s)   # for kubectl and other clients\n", k1m, flag)
	fmt.Fprintf(w, "  %s status%s\n", k1m, flag)
	fmt.Fprintf(w, "  %s down%s\n", k1m, flag)
}
