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
		Long: `Stop a cluster and remove its files. A data directory chosen with --data-dir is
left alone. Where there is no cluster there is nothing to do, but a --name that no
cluster has is an error: most likely it is misspelled.`,
		Example: `  k1m down
  k1m down --keep-data    stop it; the next up finds everything again`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := dirOf(*name)
			if err != nil {
				return err
			}
			dataDir := ""
			if config, err := clusterdir.Load(dir); err == nil {
				dataDir = config.Settings.DataDir
			}
			err = lifecycle.Down(dir, keepData)
			if errors.Is(err, clusterdir.ErrUnknown) && cmd.Flag("name").Changed {
				return fmt.Errorf("cluster %q does not exist: nothing to take down", *name)
			}
			if errors.Is(err, clusterdir.ErrUnknown) {
				fmt.Fprintf(cmd.OutOrStdout(), "Cluster %q does not exist: nothing to take down\n", *name)
				return nil
			}
			if err != nil {
				return err
			}
			what := "its files are removed"
			if keepData {
				what = "its files are kept in " + dir.Root()
			}
			if dataDir != "" {
				what += "; its data stays in " + dataDir
			}
			fmt.Fprintf(cmd.OutOrStdout(), "Cluster %q is down; %s.\n", *name, what)
			return nil
		},
	}
	cmd.Flags().BoolVar(&keepData, "keep-data", keepData, "keep the data, certificates and settings for the next up")
	return cmd
}
