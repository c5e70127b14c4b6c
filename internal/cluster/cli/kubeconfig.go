package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
)

func newKubeconfig(name *string) *cobra.Command {
	path := false
	cmd := &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print the kubeconfig of a cluster's administrator",
		Long:  "Print the kubeconfig of a cluster's administrator. It contains the client key.",
		Example: `  # Let kubectl and other clients use the cluster
  export KUBECONFIG=$(k1m kubeconfig --path)

  # Copy the kubeconfig to another file
  k1m kubeconfig > admin.conf`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, _, err := loadCluster(*name)
			if err != nil {
				return err
			}
			return printKubeconfig(cmd, dir, path)
		},
	}
	cmd.Flags().BoolVar(&path, "path", path, "print the path of the file instead of its content")
	return cmd
}

func printKubeconfig(cmd *cobra.Command, dir clusterdir.Dir, path bool) error {
	file := dir.Kubeconfig(pki.Admin.File)
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
