package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
)

// resumeHelp is part of the help of all bulk commands.
const resumeHelp = `The names consist of --prefix and consecutive numbers from --first. To continue after an
interruption, repeat the command: it skips objects that are already in the wanted state.`

func newNodes(name *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "Create and delete simulated nodes, and let them fail",
		Args:  usageArgs(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newNodesCreate(name), newNodesDelete(name))
	cmd.AddCommand(newNodesFaults(name)...)
	return cmd
}

func newNodesCreate(name *string) *cobra.Command {
	shape, b := bulk.DefaultNodeShape(), newBulkCommand(name, bulk.NodePrefix)
	cmd := &cobra.Command{
		Use:   "create --count N",
		Short: "Create nodes and wait until they are ready",
		Long:  "Create nodes and wait until they are ready.\n\n" + resumeHelp,
		Example: `  # Create the nodes node-000000 to node-009999
  k1m nodes create --count 10000

  # Create 500 nodes with other names, capacity and labels
  k1m nodes create --count 500 --prefix gpu- --cpu 96 --labels accelerator=h100

  # Create 500 nodes from a manifest
  k1m nodes create --count 500 --template node.yaml`,
		Args: usageArgs(cobra.NoArgs),
	}
	shape.AddFlags(cmd.Flags())
	b.addFlags(cmd, "wait until the nodes are ready")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		nodes, err := bulk.NewNodes(shape)
		if err != nil {
			return err
		}
		return b.run(cmd, bulkAction{
			verb: "created", kind: "nodes", whenSkipped: "existed",
			do: func(ctx context.Context, clients *bulk.Clients, o bulk.Options) (bulk.Summary, error) {
				return bulk.CreateNodes(ctx, clients, nodes, o)
			},
			awaited: "ready", await: func(ctx context.Context, clients *bulk.Clients, o bulk.Options) error {
				return bulk.AwaitNodesReady(ctx, clients, o, b.timeout)
			},
		})
	}
	return cmd
}

func newNodesDelete(name *string) *cobra.Command {
	b := newBulkCommand(name, bulk.NodePrefix)
	cmd := &cobra.Command{
		Use:     "delete --count N",
		Short:   "Delete nodes",
		Long:    "Delete nodes. The controllers delete the pods of these nodes later.\n\n" + resumeHelp,
		Example: "  # Delete the nodes node-000900 to node-000999\n  k1m nodes delete --count 100 --first 900",
		Args:    usageArgs(cobra.NoArgs),
	}
	b.addFlags(cmd, "")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return b.run(cmd, bulkAction{verb: "deleted", kind: "nodes", whenSkipped: "did not exist", do: bulk.DeleteNodes})
	}
	return cmd
}
