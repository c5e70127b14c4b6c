package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/network/agent"
	"github.com/k8s-1m/k8s-1m/internal/network/lab"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
)

func newNetwork() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "network",
		Short: "Build the IPv6-only network of a cluster in network namespaces",
		Args:  usageArgs(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newNetworkLab())
	return cmd
}

func newNetworkLab() *cobra.Command {
	o := lab.DefaultOptions()
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Build a lab: a provider, nodes with their agents, and pods",
		Long: `Build the network of a cluster on this machine: a provider with a router, nodes with the real network-agent, and pods
that the real CNI plugins bridge and host-local attach. Every pod has a real IPv6 address; there is no overlay and
no NAT. Each of them is a network namespace, which stays until ` + "`k1m network lab down`" + `. It needs root.

Modes (--mode), each as a provider does it:
  routed   the provider routes a /64 to each node
  on-link  the provider gives each node a /96 and asks on the link for each address
  one-mac  the provider gives each node an /80, asks for addresses, and drops frames with another Ethernet address
           than that of the node`,
		Example: `  k1m network lab --nodes 5 --pods 2
  k1m network lab exec pod-0001-01 -- ping -c 3 2001:db8:ffff::2
  k1m network lab status
  k1m network lab down`,
		Args: usageArgs(cobra.NoArgs),
	}
	cmd.PersistentFlags().StringVar(&o.Name, "lab", o.Name, "name of the lab")
	cmd.Flags().StringVar(&o.Mode, "mode", o.Mode, "how the provider delivers packets: "+strings.Join(agent.Modes, "|"))
	cmd.Flags().IntVar(&o.Nodes, "nodes", o.Nodes, "number of nodes")
	cmd.Flags().IntVar(&o.PodsPerNode, "pods", o.PodsPerNode, "number of pods of each node")
	cmd.Flags().IntVar(&o.MTU, "mtu", o.MTU, "MTU of all links")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.Validate(); err != nil {
			return err
		}
		var err error
		if o.Agent, o.Plugins, err = labPrograms(); err != nil {
			return err
		}
		display := progress.New(cmd.ErrOrStderr())
		l, err := lab.Up(cmd.Context(), o, display, &lab.Timings{})
		display.Close()
		if err != nil {
			return err
		}
		printLab(cmd.OutOrStdout(), l.Summary(), firstNodes)
		return nil
	}
	cmd.AddCommand(newNetworkLabStatus(&o.Name), newNetworkLabExec(&o.Name), newNetworkLabDown(&o.Name))
	return cmd
}

// labPrograms returns the agent and the directory of the CNI plugins, which are beside k1m.
func labPrograms() (agentPath, plugins string, err error) {
	agentPath, err = component.FindBinary("network-agent")
	if err != nil {
		return "", "", err
	}
	self, err := os.Executable()
	if err != nil {
		return "", "", err
	}
	return agentPath, filepath.Join(filepath.Dir(self), "cni"), nil
}

// firstNodes is the number of nodes that a summary shows.
const firstNodes = 5

// printLab prints what a lab consists of: at most some nodes, or all of them if most is 0.
func printLab(w io.Writer, s lab.Summary, most int) {
	o := s.Options
	fmt.Fprintf(w, "\nLab %q is up: %d nodes, mode %s.\n\n", o.Name, len(s.Nodes), o.Mode)
	table := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(table, "NAMESPACE\tADDRESS\tPREFIX OF PODS\tPODS")
	for i, n := range s.Nodes {
		if most > 0 && i == most {
			break
		}
		pods := ""
		if len(n.Pods) > 0 {
			pods = fmt.Sprintf("%d, the first %s", len(n.Pods), n.Pods[0].Address)
		}
		fmt.Fprintf(table, "%s-%s\t%s\t%s\t%s\n", o.Name, n.Plan.Name, n.Plan.Address.Addr(), n.Plan.Pods, pods)
	}
	_ = table.Flush()
	if most > 0 && len(s.Nodes) > most {
		fmt.Fprintf(w, "and %d more: k1m network lab status\n", len(s.Nodes)-most)
	}
	flag := ""
	if o.Name != lab.DefaultName {
		flag = " --lab " + o.Name
	}
	if len(s.Nodes) > 0 && len(s.Nodes[0].Pods) > 0 {
		last := s.Nodes[len(s.Nodes)-1]
		fmt.Fprintf(w, "\n  bin/k1m network lab exec%s %s -- ping -c 3 %s\n", flag, s.Nodes[0].Pods[0].Name, last.Pods[len(last.Pods)-1].Address)
	}
	fmt.Fprintf(w, "  bin/k1m network lab exec%s provider -- tcpdump -ni br0\n  bin/k1m network lab down%s\n", flag, flag)
}

func newNetworkLabStatus(name *string) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show the nodes of a lab", Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := lab.Read(*name)
			if err != nil {
				return err
			}
			printLab(cmd.OutOrStdout(), s, 0)
			return nil
		},
	}
}

func newNetworkLabDown(name *string) *cobra.Command {
	return &cobra.Command{
		Use: "down", Short: "Remove a lab, with its namespaces and agents", Args: usageArgs(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error { return lab.Down(*name) },
	}
}

func newNetworkLabExec(name *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "exec PART -- PROGRAM [ARGUMENT...]",
		Short: "Run a program in a pod, in a node, at the provider or at the server outside",
		Example: `  k1m network lab exec pod-0001-01 -- ping -c 1 2001:db8:ffff::2
  k1m network lab exec node-0001 -- nft list ruleset
  k1m network lab exec provider -- tcpdump -ni br0
  k1m network lab exec internet -- sh`,
		Args: usageArgs(cobra.MinimumNArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			ns, err := lab.Namespace(*name, args[0])
			if err != nil {
				return err
			}
			defer ns.Close()
			program := exec.CommandContext(cmd.Context(), args[1], args[2:]...)
			program.Stdin, program.Stdout, program.Stderr = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
			if err := ns.Start(program); err != nil {
				return fmt.Errorf("start %s in %s: %w", args[1], args[0], err)
			}
			err = program.Wait()
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				return fmt.Errorf("%s in %s: %w", args[1], args[0], err)
			}
			return err
		},
	}
	return cmd
}
