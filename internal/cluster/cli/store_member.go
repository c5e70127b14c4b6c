package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/k8s-1m/k8s-1m/internal/cluster/lifecycle"
	"github.com/k8s-1m/k8s-1m/internal/cluster/storemember"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

func newStoreKill(name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "kill MEMBER",
		Short: "Kill a member of the store of a cluster",
		Long: `Kill the process of a member of the store of a cluster, as a crash would (SIGKILL). The supervisor starts
it again. MEMBER is a component of ` + "`k1m status`" + `, such as store-2, or "leader" for the member that leads.`,
		Example: `  # Kill the member that leads
  k1m store kill leader`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			cluster, member, err := findMember(cmd.Context(), *name, args[0])
			if err != nil {
				return err
			}
			pid, err := cluster.Kill(member)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s (pid %d) was killed.\n", member, pid)
			return nil
		},
	}
}

func newStorePartition(name *string) *cobra.Command {
	duration := 30 * time.Second
	cmd := &cobra.Command{
		Use:   "partition MEMBER",
		Short: "Cut a member of the store of a cluster off from the others",
		Long: `Cut a member of the store of a cluster off from the others for some time. No bytes are forwarded between them
then, and neither side gets an error. Clients still reach the member. The cluster must have been started with
--store-faults. MEMBER is a component of ` + "`k1m status`" + `, such as store-2, or "leader" for the member that leads.`,
		Example: `  # Cut the member that leads off for a minute
  k1m store partition leader --for 1m

  # End it earlier
  k1m store partition store-1 --for 0s`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if duration < 0 {
				return usage.Errorf("--for %s: choose 0s or more", duration)
			}
			cluster, member, err := findMember(cmd.Context(), *name, args[0])
			if err != nil {
				return err
			}
			if err := cluster.Partition(cmd.Context(), member, duration); err != nil {
				return err
			}
			if duration == 0 {
				fmt.Fprintf(cmd.OutOrStdout(), "%s is connected to the other members.\n", member)
				return nil
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is cut off from the other members for %s.\n", member, duration)
			return nil
		},
	}
	cmd.Flags().DurationVar(&duration, "for", duration, "time for which the member is cut off; 0s ends it")
	return cmd
}

func newStoreReplace(name *string) *cobra.Command {
	timeout := 3 * time.Minute
	cmd := &cobra.Command{
		Use:   "replace MEMBER",
		Short: "Replace a member of the store of a cluster by one without data",
		Long: `Replace a member of the store of a cluster, as an operator does after a member has lost its disk: the member
is killed, removed from the store, and added again without data. The command waits until the new member is
ready. MEMBER is a component of ` + "`k1m status`" + `, such as store-2, or "leader" for the member that leads.

A store refuses changes of its members while it is not sure that a majority is connected, for some seconds
after a fault. The supervisor repeats the change until it succeeds, also after the command has ended.`,
		Example: `  k1m store replace store-2`,
		Args:    usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			cluster, member, err := findMember(cmd.Context(), *name, args[0])
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeoutCause(cmd.Context(), timeout, errors.New("timed out (--timeout)"))
			defer cancel()
			if err := cluster.Replace(ctx, member); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s was replaced.\n", member)
			return nil
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", timeout, "maximum time until the new member is ready")
	return cmd
}

// findMember returns a running cluster with several members of its store, and the component name of one of them.
func findMember(ctx context.Context, name, member string) (storemember.Cluster, string, error) {
	dir, config, err := loadCluster(name)
	if err != nil {
		return storemember.Cluster{}, "", err
	}
	if err := lifecycle.RequireRunning(dir); err != nil {
		return storemember.Cluster{}, "", err
	}
	cluster := storemember.Cluster{Dir: dir, Config: config}
	found, err := cluster.Find(ctx, member)
	return cluster, found, err
}
