package cli

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/lifecycle"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

func newKubectl(name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "kubectl [--name NAME] [--] ARGUMENTS",
		Short: "Run kubectl against a cluster",
		Long: `Run kubectl against a cluster. --name must come first. All other arguments and flags, and
everything after "--", are passed to kubectl.`,
		Example: `  # List the nodes of the cluster "k1m"
  k1m kubectl get nodes -o wide

  # List the pods of the cluster "peer"
  k1m kubectl --name peer get pods --all-namespaces

  # Show the help of kubectl
  k1m kubectl -- --help`,
		// cobra must not parse the flags of kubectl.
		DisableFlagParsing:    true,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			args, help, err := parseK1mFlags(args, name)
			switch {
			case help:
				return cmd.Help()
			case err != nil:
				return err
			case len(args) == 0:
				return usage.Errorf("no arguments for kubectl; try `k1m kubectl get nodes`")
			}
			dir, _, err := loadCluster(*name)
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
			// Exec returns only if it fails.
			return fmt.Errorf("running kubectl: %w", syscall.Exec(kubectl, append([]string{"kubectl"}, args...), env))
		},
	}
}

// parseK1mFlags parses the flags of k1m at the beginning of args. rest contains the arguments of kubectl.
// help is true if the user requested the help of this command.
func parseK1mFlags(args []string, name *string) (rest []string, help bool, err error) {
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
