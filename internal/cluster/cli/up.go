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
	timeout := defaultTimeout
	minFree := "512Mi"
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring a cluster up and wait until its nodes are ready",
		Long: `Bring a cluster up and wait until its nodes are ready.

The settings are remembered: up after down --keep-data needs no flags and finds
its data again. On a cluster that runs, up only makes sure that it is healthy and
has the nodes. If up fails or is stopped before the cluster is complete, nothing
keeps running.`,
		Example: `  k1m up --nodes 1000
  k1m up --name safe --wal-mode fsync --nodes 100
  k1m up --name peer --store etcd --apiservers 2
  k1m up --apiserver-arg event-ttl=5m --apiserver-env GOGC=200`,
		Args: usageArgs(cobra.NoArgs),
	}
	settings.AddFlags(cmd.Flags())
	cmd.Flags().DurationVar(&timeout, "timeout", timeout, "how long the components may take to get ready, and the nodes to make no progress")
	cmd.Flags().StringVar(&minFree, "min-free-disk", minFree, "refuse to start with less free disk space")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		dir, err := dirOf(*name)
		if err != nil {
			return err
		}
		wanted, err := resource.ParseQuantity(minFree)
		if err != nil {
			return usage.Errorf("--min-free-disk %q: not a quantity; write it like 512Mi or 10Gi", minFree)
		}
		if timeout <= 0 {
			return usage.Errorf("--timeout %s: must be more than 0", timeout)
		}
		started := time.Now()
		display := progress.New(cmd.OutOrStdout())
		result, err := lifecycle.Up(cmd.Context(), lifecycle.UpOptions{
			Dir: dir, Flags: cmd.Flags(), Timeout: timeout, MinFree: wanted, Display: display,
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

// printUp says what to type next, with the program's name as it was typed now.
func printUp(w io.Writer, dir clusterdir.Dir, result lifecycle.UpResult, took time.Duration) {
	flag := ""
	if dir.Name() != clusterdir.DefaultName {
		flag = " --name " + dir.Name()
	}
	how := fmt.Sprintf("is up after %.1fs", took.Seconds())
	if result.AlreadyRan {
		how = "runs already and is healthy"
	}
	k1m := os.Args[0]
	fmt.Fprintf(w, "\nCluster %q %s, with %d nodes on %s.\n\n",
		dir.Name(), how, result.Nodes, result.Config.Settings.DescribeStore())
	fmt.Fprintf(w, "  %s kubectl%s get nodes\n", k1m, flag)
	fmt.Fprintf(w, "  export KUBECONFIG=$(%s kubeconfig --path%s)   # for kubectl and anything else\n", k1m, flag)
	fmt.Fprintf(w, "  %s status%s\n", k1m, flag)
	fmt.Fprintf(w, "  %s down%s\n", k1m, flag)
}
