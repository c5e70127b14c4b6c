package cli

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// storeDialTimeout limits the time until a store has answered for the first time.
const storeDialTimeout = 10 * time.Second

func newStore(name *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "store",
		Short: "Copy and compare stores, and inject faults into members of a store",
		Long: `Copy a running store between etcd and mem_etcd, and compare two stores. These stores need not be
those of a cluster of k1m. ENDPOINT is a URL such as https://127.0.0.1:2379.

Kill, cut off and replace members of the store of a cluster that was started with --store-replicas.`,
		Example: `  # Create a data directory of mem_etcd from a running etcd
  k1m store copy http://127.0.0.1:2379 --to mem_etcd --data-dir /var/lib/mem_etcd

  # Compare the copy, which runs on another port, with the original
  k1m store compare http://127.0.0.1:2379 http://127.0.0.1:2479

  # Kill the member that leads the store of the cluster "k1m"
  k1m store kill leader`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newStoreCopy(), newStoreCompare(), newStoreKill(name), newStorePartition(name), newStoreReplace(name))
	return cmd
}

// addTLSFlags adds the flags of a connection to a store. prefix begins their names, and which says for users which
// store is meant.
func addTLSFlags(fs *pflag.FlagSet, s *component.StoreClient, prefix, which string) {
	fs.StringVar(&s.CAFile, prefix+"cacert", s.CAFile, "CA certificate that verifies the certificate of "+which)
	fs.StringVar(&s.CertFile, prefix+"cert", s.CertFile, "client certificate for "+which)
	fs.StringVar(&s.KeyFile, prefix+"key", s.KeyFile, "private key of --"+prefix+"cert")
}

// dialStore connects to a store and waits until it has answered.
func dialStore(ctx context.Context, s component.StoreClient) (*clientv3.Client, error) {
	u, err := url.Parse(s.Endpoint)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Port() == "" {
		return nil, usage.Errorf("%q: not a URL with a port; write it like https://127.0.0.1:2379", s.Endpoint)
	}
	if (s.CertFile == "") != (s.KeyFile == "") {
		return nil, usage.Errorf("--cert and --key must be used together; set both or neither")
	}
	client, err := s.Dial(ctx, storeDialTimeout)
	if err != nil {
		return nil, err
	}
	status, cancel := context.WithTimeout(ctx, storeDialTimeout)
	defer cancel()
	if _, err := client.Status(status, s.Endpoint); err != nil {
		_ = client.Close()
		return nil, fmt.Errorf("connecting to %s: %w; start the store, or correct the URL and the certificates", s.Endpoint, err)
	}
	return client, nil
}
