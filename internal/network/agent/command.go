package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

const long = `network-agent prepares a node of an IPv6-only cluster for pods with real addresses, without overlay and NAT.

It takes a /96 for the pods of the node, out of the prefix that the provider gave to the node (--prefix) or out
of a prefix of the cluster (--pool), and records a claim, so that no two nodes use one prefix. Then it
  - creates the bridge of the pods, turns on forwarding, and writes the CNI configuration, with which the runtime
    calls the plugins bridge and host-local;
  - answers neighbour solicitations for all addresses of the /96 at the uplink, if the provider asks for them
    (--mode on-link and one-mac);
  - binds each pod to its address by nftables rules: packets with another source, and neighbour advertisements for
    other addresses, are dropped;
  - rejects packets to addresses that no pod has, so that a scan does not fill the kernel's table of neighbours.

It learns the addresses of pods from the results of CNI that the runtime records (containerd and CRI-O do). A pod
that starts while the agent does not run has no network until the agent runs again; pods that run keep theirs.
Run it as root, one on each node. It needs no other program.`

const example = `  # A provider that routes a /64 to each node, whose first address the node has
  network-agent --prefix uplink --mode routed

  # A provider that gives each node a /96 and asks for its addresses on the link
  network-agent --prefix 2001:db8:0:0:0:7::/96 --mode on-link

  # A /96 out of the prefix of the cluster, claimed through the API server
  network-agent --pool 2001:db8::/64 --mode on-link --claims kubernetes --kubeconfig /etc/network-agent/kubeconfig

  # Give the prefix back before the node is deleted
  network-agent leave --prefix uplink --claims kubernetes --kubeconfig /etc/network-agent/kubeconfig`

// Main runs the agent and returns its exit code: 0 for success, 1 for a failure, 2 for invalid usage.
func Main(version string, args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	root := newCommand(version, stderr)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "network-agent: %s\n", strings.Join(strings.Fields(err.Error()), " "))
	if errors.Is(err, usage.Err) {
		return 2
	}
	return 1
}

func newCommand(version string, stderr io.Writer) *cobra.Command {
	o := DefaultOptions()
	noArgs := func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return usage.Errorf("%q: no such command; see network-agent --help", args[0])
		}
		return nil
	}
	root := &cobra.Command{
		Use: "network-agent", Short: "Give the pods of a node real IPv6 addresses", Long: long, Example: example, Version: version,
		Args: noArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Validate(); err != nil {
				return err
			}
			return Run(cmd.Context(), o, slog.New(slog.NewTextHandler(stderr, nil)))
		},
	}
	leave := &cobra.Command{
		Use: "leave", Short: "Give back the prefix, and remove what the agent made on the node",
		Long: `Give back the claim of the prefix, and remove the CNI configuration, the nftables rules, the bridge and the state of
the agent. Stop the agent and the pods before. Other nodes do not get the prefix before --reuse-after.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Validate(); err != nil {
				return err
			}
			return Leave(cmd.Context(), o)
		},
	}
	o.AddFlags(root.PersistentFlags())
	root.AddCommand(leave)
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage.Errorf("%v; see network-agent --help", err)
	})
	return root
}
