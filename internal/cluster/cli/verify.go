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
		Short: "Audit where a cluster's pods are, from its API alone",
		Long: `Audit where a cluster's pods are, from its API alone: that no node has more pods than
it can take, and that every pod may be where it is, as far as the resources and host
ports, taints, node affinity, hard topology spread and required anti-affinity say.

What is there now is judged. A violation can have come about after a pod was bound: a
node that got smaller, a label or taint that changed, a pod that was deleted. Mirror
pods and others that no scheduler placed are audited as well. The command fails if it
finds a violation.`,
		Example: `  k1m verify
  k1m verify -o json
  k1m verify --kubeconfig ~/.kube/config      of any cluster`,
		Args: usageArgs(cobra.NoArgs),
	}
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", kubeconfig, "of another cluster than the one that --name names")
	addOutputFlag(cmd, &output)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := validateOutput(output); err != nil {
			return err
		}
		if kubeconfig == "" {
			dir, _, err := existing(*name)
			if err == nil {
				err = lifecycle.RequireRunning(dir)
			}
			if err != nil {
				return err
			}
			kubeconfig = dir.Kubeconfig(pki.SuperAdmin.File)
		}
		report, err := audit(cmd, kubeconfig)
		if err != nil {
			return err
		}
		return errors.Join(printAs(cmd, output, report, report.Print), report.Err())
	}
	return cmd
}

func audit(cmd *cobra.Command, kubeconfig string) (*verify.Report, error) {
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

func readCluster(ctx context.Context, client kubernetes.Interface, display progress.Display) (*verify.Cluster, error) {
	// How many there are is known when all are read.
	task, nodes := display.Task("nodes and pods read", 0), 0
	read, err := verify.Read(ctx, client,
		func(done int) { nodes = done; task.Set(done) },
		func(done int) { task.Set(nodes + done) })
	if err != nil {
		progress.Fail(ctx, task, err.Error())
		return nil, err
	}
	task.Done("all")
	return read, nil
}
