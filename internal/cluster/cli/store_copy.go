package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/storedata"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

func newStoreCopy() *cobra.Command {
	var from component.StoreClient
	options := storedata.CopyOptions{Member: "default", PeerURL: "http://localhost:2380", Find: component.FindBinary}
	cmd := &cobra.Command{
		Use:   "copy ENDPOINT --to STORE --data-dir DIR",
		Short: "Create a data directory of mem_etcd or etcd from a running store",
		Long: `Create a data directory of mem_etcd or etcd from a running store, which may be either. Keys,
values, revisions, versions and leases are kept. A directory of mem_etcd also gets the history since the last
compaction. One of etcd gets only the current keys, as after a compaction.

Stop the clients first, because later writes are not copied. Then start the new store with the directory,
compare both stores with "k1m store compare", and let the clients connect to the new one. Users, roles and
members of etcd are not copied; --member and --peer-url must be the --name and --initial-advertise-peer-urls
with which the new etcd is started.

If clients wrote after the copy, raise the revision with --bump-revision, so that no client sees a revision
twice. In a Kubernetes cluster, 1000000000 is enough.`,
		Example: `  # From etcd to mem_etcd
  k1m store copy https://127.0.0.1:2379 --cacert ca.crt --cert client.crt --key client.key --to mem_etcd --data-dir /var/lib/mem_etcd

  # Back to etcd
  k1m store copy http://127.0.0.1:2379 --to etcd --data-dir /var/lib/etcd --member m1 --peer-url http://10.0.0.1:2380`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if options.To != clusterdir.StoreMemEtcd && options.To != clusterdir.StoreEtcd {
				return usage.Errorf("--to %q: choose mem_etcd or etcd", options.To)
			}
			if options.DataDir == "" {
				return usage.Errorf("--data-dir: name the directory to create")
			}
			from.Endpoint = args[0]
			client, err := dialStore(cmd.Context(), from)
			if err != nil {
				return interruptedOr(cmd, err)
			}
			defer client.Close()
			options.From, options.Display = client, progress.New(cmd.ErrOrStderr())
			err = storedata.Copy(cmd.Context(), options)
			options.Display.Close()
			if err != nil {
				return interruptedOr(cmd, err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is a data directory of %s. Start it, and compare both with `k1m store compare`.\n", options.DataDir, options.To)
			return nil
		},
	}
	addTLSFlags(cmd.Flags(), &from, "", "the store")
	cmd.Flags().StringVar(&options.To, "to", options.To, "program for which the data directory is created: mem_etcd|etcd")
	cmd.Flags().StringVar(&options.DataDir, "data-dir", options.DataDir, "data directory to create; it must be empty or not exist")
	cmd.Flags().Uint64Var(&options.Bump, "bump-revision", options.Bump, "number by which to raise the revision, after which all older revisions are compacted")
	cmd.Flags().StringVar(&options.Member, "member", options.Member, "with --to etcd, name of the member")
	cmd.Flags().StringVar(&options.PeerURL, "peer-url", options.PeerURL, "with --to etcd, peer URL of the member")
	return cmd
}
