package cli

import (
	"context"
	"encoding/json"
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
		Short: "Show a cluster's components, nodes, pods and store",
		Long: `Show a cluster's components, nodes, pods and store.

The exit code is 0 whenever the cluster is known, however it does. Scripts read
-o json: name, state (running, degraded, stopped or dead), store, storeKind,
walMode, scheduler, supervisor, components (name, pid, state, restarts, …),
nodes (total, ready, notReady), pods (total, byPhase), objects (count, revision)
and problems.`,
		Example: `  k1m status
  k1m status -o wide
  k1m status -o json | jq -r .state
  k1m status -o json | jq '.components[] | {name, pid, restarts}'`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "" && output != "json" && output != "wide" {
				return usage.Errorf("-o %q: no such format; use json or wide", output)
			}
			dir, config, err := existing(*name)
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
	cmd.Flags().StringVarP(&output, "output", "o", output, "json|wide (default: a table)")
	cmd.Flags().DurationVar(&timeout, "timeout", timeout, "how long counting may take")
	return cmd
}

func printJSON(cmd *cobra.Command, value any) error {
	encoder := json.NewEncoder(cmd.OutOrStdout())
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}
