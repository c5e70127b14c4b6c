package cli

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/lifecycle"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

func newKubectl(name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "kubectl [--name NAME] [--] ARGUMENTS",
		Short: "Run kubectl against a cluster",
		Long: `Run kubectl against a cluster. What follows --name, or the first --, is kubectl's,
its flags too.`,
		Example: `  k1m kubectl get nodes -o wide
  k1m kubectl --name peer get pods --all-namespaces
  k1m kubectl -- --help               kubectl's own help`,
		// Most flags here are kubectl's.
		DisableFlagParsing:    true,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			args, help, err := takeOwnFlags(args, name)
			switch {
			case help:
				return cmd.Help()
			case err != nil:
				return err
			case len(args) == 0:
				return usage.Errorf("nothing for kubectl to do; try `k1m kubectl get nodes`")
			}
			dir, _, err := existing(*name)
			if err != nil {
				return err
			}
			if err := lifecycle.RequireRunning(dir); err != nil {
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

// takeOwnFlags takes k1m's flags from the beginning, and returns what is kubectl's.
func takeOwnFlags(args []string, name *string) (rest []string, help bool, err error) {
	for len(args) > 0 {
		value, withValue := strings.CutPrefix(args[0], "--name=")
		switch {
		case args[0] == "--":
			return args[1:], false, nil
		case args[0] == "--help" || args[0] == "-h":
			return nil, true, nil
		case withValue:
			*name, args = value, args[1:]
		case args[0] == "--name" && len(args) > 1:
			*name, args = args[1], args[2:]
		case args[0] == "--name":
			return nil, false, usage.Errorf("flag needs an argument: --name; see `k1m kubectl --help`")
		default:
			return args, false, nil
		}
	}
	return nil, false, nil
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

func printKubeconfig(cmd *cobra.Command, dir clusterdir.Dir, path bool) error {
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
