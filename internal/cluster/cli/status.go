package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/k8s-1m/k8s-1m/internal/cluster/status"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

func newStatus(name *string) *cobra.Command {
	output := ""
	timeout := 30 * time.Second
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the components, nodes, pods and store of a cluster",
		Long: `Show the components, nodes, pods and store of a cluster. The exit code is 0 if the cluster
exists, regardless of its state.

The fields of -o json are: name, state (running, degraded, stopped or dead), store, storeKind,
walMode, scheduler, profile (name, nodes, changes), supervisor, components (name, pid, state, restarts, …), traces, nodes (total,
ready, notReady), pods (total, byPhase), objects (count of all stores, revision, ownStores), storeLeader, gateways
(name, clientConnections, movedConnections, servers) and problems.`,
		Example: `  # Show the status of the cluster "k1m"
  k1m status

  # Show more columns, and the load that each gateway sends to each API server
  k1m status -o wide

  # Print the state only
  k1m status -o json | jq -r .state

  # Print the restarts of all components
  k1m status -o json | jq '.components[] | {name, pid, restarts}'`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "" && output != "json" && output != "wide" {
				return usage.Errorf("-o %q: no such format; use json or wide", output)
			}
			dir, config, err := loadCluster(*name)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			s, err := status.Read(ctx, dir, config)
			if err != nil {
				return err
			}
			if output == "json" {
				return printJSON(cmd, s)
			}
			return s.Print(cmd.OutOrStdout(), output == "wide")
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", output, "output format: json|wide (default: table)")
	cmd.Flags().DurationVar(&timeout, "timeout", timeout, "maximum time for counting nodes, pods and objects")
	return cmd
}
