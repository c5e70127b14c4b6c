package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
)

func newPods(name *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pods",
		Short: "Create and delete pods",
		Args:  usageArgs(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newPodsCreate(name), newPodsDelete(name))
	return cmd
}

func newPodsCreate(name *string) *cobra.Command {
	shape, b := bulk.DefaultPodShape(), newBulkCommand(name, bulk.PodPrefix)
	cmd := &cobra.Command{
		Use:   "create --count N",
		Short: "Create pods and wait until they run",
		Long:  "Create pods and wait until they run. The namespace is created if it does not exist.\n\n" + resumeHelp,
		Example: `  # Create the pods pod-000000 to pod-000999 in the namespace "default"
  k1m pods create --count 1000

  # Create 1000 larger pods in another namespace, and do not wait until they run
  k1m pods create --count 1000 --namespace load --cpu 1 --memory 2Gi --wait=false

  # Create 1000 pods from a manifest, and print the result as JSON
  k1m pods create --count 1000 --template pod.yaml -o json`,
		Args: usageArgs(cobra.NoArgs),
	}
	shape.AddFlags(cmd.Flags())
	addNamespace(cmd, &shape.Namespace)
	b.addFlags(cmd, "wait until the pods run")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := bulk.ValidateNamespace(shape.Namespace); err != nil {
			return err
		}
		pods, err := bulk.NewPods(shape)
		if err != nil {
			return err
		}
		return b.run(cmd, bulkAction{
			verb: "created", kind: "pods", whenSkipped: "existed",
			do: func(ctx context.Context, clients *bulk.Clients, o bulk.Options) (bulk.Summary, error) {
				return bulk.CreatePods(ctx, clients, pods, shape.Namespace, o)
			},
			awaited: "running", await: func(ctx context.Context, clients *bulk.Clients, o bulk.Options) error {
				return bulk.AwaitPodsRunning(ctx, clients, shape.Namespace, o, b.timeout)
			},
		})
	}
	return cmd
}

func newPodsDelete(name *string) *cobra.Command {
	namespace, b := bulk.DefaultPodShape().Namespace, newBulkCommand(name, bulk.PodPrefix)
	cmd := &cobra.Command{
		Use:     "delete --count N",
		Short:   "Delete pods and wait until they are gone",
		Long:    "Delete pods and wait until they are gone.\n\n" + resumeHelp,
		Example: "  k1m pods delete --count 1000 --namespace load",
		Args:    usageArgs(cobra.NoArgs),
	}
	addNamespace(cmd, &namespace)
	b.addFlags(cmd, "wait until the pods are gone")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := bulk.ValidateNamespace(namespace); err != nil {
			return err
		}
		return b.run(cmd, bulkAction{
			verb: "deleted", kind: "pods", whenSkipped: "did not exist",
			do: func(ctx context.Context, clients *bulk.Clients, o bulk.Options) (bulk.Summary, error) {
				return bulk.DeletePods(ctx, clients, namespace, o)
			},
			awaited: "gone", await: func(ctx context.Context, clients *bulk.Clients, o bulk.Options) error {
				return bulk.AwaitPodsGone(ctx, clients, namespace, o, b.timeout)
			},
		})
	}
	return cmd
}

func addNamespace(cmd *cobra.Command, namespace *string) {
	cmd.Flags().StringVarP(namespace, "namespace", "n", *namespace, "namespace of the pods")
}
