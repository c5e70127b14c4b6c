package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
)

const continues = `Names are the prefix and a number, so the same command again continues where it
stopped: what is done already is counted and skipped.`

func newNodes(name *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "Create and delete simulated nodes",
		Args:  usageArgs(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newNodesCreate(name), newNodesDelete(name))
	return cmd
}

func newNodesCreate(name *string) *cobra.Command {
	shape, b := bulk.DefaultNodeShape(), newBulk(name, bulk.NodePrefix)
	cmd := &cobra.Command{
		Use:   "create --count N",
		Short: "Create nodes and wait until they are ready",
		Long:  "Create nodes and wait until they are ready.\n\n" + continues,
		Example: `  k1m nodes create --count 10000
  k1m nodes create --count 500 --prefix gpu- --cpu 96 --labels accelerator=h100
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
		return b.run(cmd, action{
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
	b := newBulk(name, bulk.NodePrefix)
	cmd := &cobra.Command{
		Use:     "delete --count N",
		Short:   "Delete nodes",
		Long:    "Delete nodes. Pods on them are removed by the controllers some time later.\n\n" + continues,
		Example: "  k1m nodes delete --count 100 --first 900    node-000900 to node-000999",
		Args:    usageArgs(cobra.NoArgs),
	}
	b.addFlags(cmd, "")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return b.run(cmd, action{verb: "deleted", kind: "nodes", whenSkipped: "did not exist", do: bulk.DeleteNodes})
	}
	return cmd
}
