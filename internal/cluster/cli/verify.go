package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"

	"github.com/k8s-1m/k8s-1m/internal/cluster/kube"
	"github.com/k8s-1m/k8s-1m/internal/cluster/lifecycle"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
	"github.com/k8s-1m/k8s-1m/internal/cluster/verify"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
)

func newVerify(name *string) *cobra.Command {
	kubeconfig, output := "", outputText
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Check that every pod of a cluster is allowed on its node",
		Long: `Check that every bound pod of a cluster is allowed on its node with respect to resource
requests, host ports, taints, node affinity, hard topology spread constraints and required
anti-affinity. The command reads nodes and pods from the API and fails if it finds a violation.

The command checks the current state. A violation can have occurred after the pod was bound, because
the capacity, labels or taints of a node changed, or because another pod was deleted. The command also
checks pods that were not bound by a scheduler, such as mirror pods.`,
		Example: `  # Check the cluster "k1m"
  k1m verify

  # Print all violations as JSON
  k1m verify -o json

  # Check a cluster that k1m did not create
  k1m verify --kubeconfig ~/.kube/config`,
		Args: usageArgs(cobra.NoArgs),
	}
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", kubeconfig, "kubeconfig file of the cluster to check (default: that of --name)")
	addOutputFlag(cmd, &output)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := validateOutput(output); err != nil {
			return err
		}
		if kubeconfig == "" {
			dir, _, err := loadCluster(*name)
			if err == nil {
				err = lifecycle.RequireRunning(dir)
			}
			if err != nil {
				return err
			}
			kubeconfig = dir.Kubeconfig(pki.SuperAdmin.File)
		}
		report, err := verifyCluster(cmd, kubeconfig)
		if err != nil {
			return err
		}
		return errors.Join(printAs(cmd, output, report, report.Print), report.Err())
	}
	return cmd
}

// verifyCluster reads a cluster and checks it.
func verifyCluster(cmd *cobra.Command, kubeconfig string) (*verify.Report, error) {
	rest, err := kube.Config(kubeconfig)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return nil, fmt.Errorf("connecting to the API server: %w", err)
	}
	display := progress.New(cmd.ErrOrStderr())
	defer display.Close()
	read, err := readCluster(cmd.Context(), client, display)
	if err != nil {
		return nil, err
	}
	return read.Check()
}

// readCluster reads a cluster and displays the progress.
func readCluster(ctx context.Context, client kubernetes.Interface, display progress.Display) (*verify.Cluster, error) {
	// The total number is not known until all objects are read.
	task, nodes := display.Task("nodes and pods read", 0), 0
	read, err := verify.Read(ctx, client,
		func(done int) { nodes = done; task.Set(done) },
		func(done int) { task.Set(nodes + done) })
	if err != nil {
		progress.Fail(ctx, task, err.Error())
		return nil, err
	}
	task.Done("complete")
	return read, nil
}
