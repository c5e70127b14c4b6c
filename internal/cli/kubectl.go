package cli

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/k8s-1m/k8s-1m/internal/cluster"
	"github.com/k8s-1m/k8s-1m/internal/component"
	"github.com/k8s-1m/k8s-1m/internal/pki"
)

func newKubectl(name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "kubectl -- ARGUMENTS",
		Short: "Run kubectl against a cluster",
		Example: `  k1m kubectl -- get nodes
  k1m kubectl --name peer -- get pods --all-namespaces`,
		Args: usageArgs(cobra.ArbitraryArgs),
		RunE: func(_ *cobra.Command, args []string) error {
			dir, _, err := existing(*name)
			if err != nil {
				return err
			}
			kubectl, err := component.FindBinary("kubectl")
			if err != nil {
				return err
			}
			env := slices.DeleteFunc(os.Environ(), func(pair string) bool { return strings.HasPrefix(pair, "KUBECONFIG=") })
			env = append(env, "KUBECONFIG="+dir.Kubeconfig(pki.Admin.File))
			return fmt.Errorf("running kubectl: %w", syscall.Exec(kubectl, append([]string{"kubectl"}, args...), env))
		},
	}
}

func newKubeconfig(name *string) *cobra.Command {
	path := false
	cmd := &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print the administrator's kubeconfig of a cluster",
		Example: `  export KUBECONFIG=$(k1m kubeconfig --path)
  k1m kubeconfig > elsewhere.conf`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, _, err := existing(*name)
			if err != nil {
				return err
			}
			return printKubeconfig(cmd, dir, path)
		},
	}
	cmd.Flags().BoolVar(&path, "path", path, "print where it is instead of what it says")
	return cmd
}

func printKubeconfig(cmd *cobra.Command, dir cluster.Dir, path bool) error {
	file := dir.Kubeconfig(pki.Admin.File)
	if path {
		fmt.Fprintln(cmd.OutOrStdout(), file)
		return nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w; `k1m up --name %s` makes it anew", err, dir.Name())
	}
	_, err = cmd.OutOrStdout().Write(content)
	return err
}
