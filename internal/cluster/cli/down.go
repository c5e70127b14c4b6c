package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/lifecycle"
)

func newDown(name *string) *cobra.Command {
	keepData := false
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop a cluster and remove its files",
		Long: `Stop a cluster and remove its files. With --keep-data the files are kept, and the next
` + "`k1m up`" + ` starts the same cluster again. A data directory that was set with --data-dir, and a
trace file that was set with --trace-file, are never removed.

If the cluster does not exist, the command fails only if --name is set.`,
		Example: `  # Stop the cluster "k1m" and remove its files
  k1m down

  # Stop the cluster, but keep its data for the next "k1m up"
  k1m down --keep-data`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := clusterDir(*name)
			if err != nil {
				return err
			}
			dataDir := ""
			if config, err := clusterdir.Load(dir); err == nil {
				dataDir = config.Settings.DataDir
			}
			err = lifecycle.Down(dir, keepData)
			if errors.Is(err, clusterdir.ErrUnknown) && cmd.Flag("name").Changed {
				return fmt.Errorf("cluster %q does not exist", *name)
			}
			if errors.Is(err, clusterdir.ErrUnknown) {
				fmt.Fprintf(cmd.OutOrStdout(), "Cluster %q does not exist.\n", *name)
				return nil
			}
			if err != nil {
				return err
			}
			files := "its files are removed"
			if keepData {
				files = "its files are kept in " + dir.Root()
			}
			if dataDir != "" {
				files += "; its data is kept in " + dataDir
			}
			fmt.Fprintf(cmd.OutOrStdout(), "Cluster %q is stopped; %s.\n", *name, files)
			return nil
		},
	}
	cmd.Flags().BoolVar(&keepData, "keep-data", keepData, "keep data, certificates and settings for the next `k1m up`")
	return cmd
}
