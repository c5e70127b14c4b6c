package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/nodesim"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// faultCommand is a command that injects a fault into nodes.
type faultCommand struct {
	fault   nodesim.Fault
	request nodesim.Request
	// done is what the nodes are afterwards.
	done string
}

// newNodesFaults returns the commands that inject faults, and the one that ends them.
func newNodesFaults(name *string) []*cobra.Command {
	return []*cobra.Command{newNodesStop(name), newNodesStart(name), newNodesFlap(name), newNodesSlow(name)}
}

func newNodesStop(name *string) *cobra.Command {
	f := &faultCommand{fault: nodesim.Stop, done: "stopped"}
	return f.command(name, &cobra.Command{
		Use:   "stop",
		Short: "Stop simulated nodes, as if their machines had lost power",
		Long: `Stop simulated nodes: they send no heartbeats, no status and no changes of pods, and nodes with a
connection of their own close it. kube-controller-manager marks them NotReady after its grace period.`,
		Example: `  # Stop 100 nodes at random
  k1m nodes stop --count 100

  # Stop a zone
  k1m nodes stop --zone zone-1`,
	})
}

func newNodesStart(name *string) *cobra.Command {
	f := &faultCommand{fault: nodesim.Start, done: "without faults again"}
	return f.command(name, &cobra.Command{
		Use:   "start",
		Short: "End the faults of simulated nodes",
		Long:  "End the faults of simulated nodes. Stopped nodes start as kubelets do, and their pods go on.",
		Example: `  # End all faults
  k1m nodes start --all`,
	})
}

func newNodesFlap(name *string) *cobra.Command {
	f := &faultCommand{fault: nodesim.Flap, done: "flapping"}
	cmd := f.command(name, &cobra.Command{
		Use:   "flap",
		Short: "Stop and start simulated nodes in turn",
		Long:  "Stop and start simulated nodes in turn, until `k1m nodes start`.",
		Example: `  # 10 nodes that are down for one minute in three
  k1m nodes flap --count 10 --down 60s --up 2m`,
	})
	cmd.Flags().Var(&durationText{&f.request.Down}, "down", "time for which the nodes are stopped (default 1m0s)")
	cmd.Flags().Var(&durationText{&f.request.Up}, "up", "time for which the nodes run (default 1m0s)")
	return cmd
}

func newNodesSlow(name *string) *cobra.Command {
	f := &faultCommand{fault: nodesim.Slow, done: "slow"}
	cmd := f.command(name, &cobra.Command{
		Use:   "slow",
		Short: "Delay the heartbeats, reports and pods of simulated nodes",
		Long:  "Delay the heartbeats, reports and pods of simulated nodes, until `k1m nodes start`.",
		Example: `  # All nodes with the label disk=hdd send everything 15 seconds later
  k1m nodes slow --selector disk=hdd --delay 15s`,
	})
	cmd.Flags().Var(&durationText{&f.request.Delay}, "delay", "delay of everything that the nodes do (required)")
	return cmd
}

// command completes a command: its flags that select nodes, and its run.
func (f *faultCommand) command(name *string, cmd *cobra.Command) *cobra.Command {
	flags := cmd.Flags()
	flags.BoolVar(&f.request.All, "all", false, "all nodes")
	flags.IntVar(&f.request.Count, "count", 0, "so many nodes, at random among those that the other flags select")
	flags.StringVar(&f.request.Zone, "zone", "", "nodes of a zone")
	flags.StringVarP(&f.request.Selector, "selector", "l", "", "nodes with these labels, key=value,…")
	flags.StringSliceVar(&f.request.Names, "names", nil, "nodes with these names")
	cmd.Args = usageArgs(cobra.NoArgs)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := f.validate(cmd); err != nil {
			return err
		}
		addresses, err := nodeSimAddresses(*name)
		if err != nil {
			return err
		}
		nodes, err := nodesim.InjectAll(cmd.Context(), addresses, f.fault, f.request)
		if err != nil {
			return fmt.Errorf("%w; see `k1m status --name %s`", err, *name)
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%d nodes are %s.\n", nodes, f.done)
		return nil
	}
	return cmd
}

func (f *faultCommand) validate(cmd *cobra.Command) error {
	r := &f.request
	isLimited := r.Count != 0 || r.Zone != "" || r.Selector != "" || len(r.Names) > 0
	switch {
	case cmd.Flags().Changed("count") && r.Count < 1:
		return usage.Errorf("--count %d: must be at least 1", r.Count)
	case f.fault == nodesim.Slow && r.Delay == "":
		return usage.Errorf("set --delay, such as --delay 15s")
	case r.All && isLimited:
		return usage.Errorf("--all selects all nodes; omit it, or the other flags")
	case !r.All && !isLimited:
		return usage.Errorf("select nodes by --count, --zone, --selector or --names, or use --all")
	}
	return nil
}

// nodeSimAddresses returns the host:port of the pages of each node-sim of a cluster.
func nodeSimAddresses(name string) ([]string, error) {
	dir, err := clusterDir(name)
	if err != nil {
		return nil, err
	}
	config, err := clusterdir.Load(dir)
	if err != nil {
		return nil, err
	}
	if simulator := config.Settings.NodeSimulator; simulator != clusterdir.SimulatorNodeSim {
		return nil, usage.Errorf("the nodes of cluster %q are simulated by %s, which cannot inject faults; start a cluster with --node-simulator node-sim", name, simulator)
	}
	return component.NodeSimAddresses(config), nil
}

// durationText is the value of a flag for a positive duration, kept as text.
type durationText struct{ text *string }

// Set sets the value of the flag.
func (d *durationText) Set(text string) error {
	value, err := time.ParseDuration(text)
	if err != nil || value <= 0 {
		return fmt.Errorf("%q is not a duration above 0, such as 15s", text)
	}
	*d.text = fmt.Sprintf("%dms", max(value.Milliseconds(), 1))
	return nil
}

func (d *durationText) String() string { return *d.text }

// Type returns the type that the help shows.
func (d *durationText) Type() string { return "duration" }
