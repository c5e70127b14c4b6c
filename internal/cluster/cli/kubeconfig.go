package cli

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

func newKubeconfig(name *string) *cobra.Command {
	path, server := false, ""
	cmd := &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print the kubeconfig of a cluster's administrator",
		Long: `Print the kubeconfig of a cluster's administrator. It contains the client key.

Its server is the first API server or, in a cluster with --gateway, the first gateway. --server
selects any other API server or gateway.`,
		Example: `  # Let kubectl and other clients use the cluster
  export KUBECONFIG=$(k1m kubeconfig --path)

  # Copy the kubeconfig to another file
  k1m kubeconfig > admin.conf

  # Read from one API server, past the gateway
  kubectl --kubeconfig $(k1m kubeconfig --server kube-apiserver-1 --path) get nodes`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, config, err := loadCluster(*name)
			if err != nil {
				return err
			}
			file := pki.Admin.File
			if server != "" {
				if servers := component.ServerNames(config); !slices.Contains(servers, server) {
					return usage.Errorf("--server %q: this cluster has no such server; choose one of %s", server, strings.Join(servers, ", "))
				}
				file = component.AdminFileFor(server)
			}
			return printKubeconfig(cmd, dir, dir.Kubeconfig(file), path)
		},
	}
	cmd.Flags().StringVar(&server, "server", server, "API server or gateway to connect to, such as kube-apiserver-1 (default: the first gateway or, without a gateway, the first API server)")
	cmd.Flags().BoolVar(&path, "path", path, "print the path of the file instead of its content")
	return cmd
}

func printKubeconfig(cmd *cobra.Command, dir clusterdir.Dir, file string, path bool) error {
	if path {
		fmt.Fprintln(cmd.OutOrStdout(), file)
		return nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w; `k1m up --name %s` creates it again", err, dir.Name())
	}
	_, err = cmd.OutOrStdout().Write(content)
	return err
}
