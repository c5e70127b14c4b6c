package component

import (
	"context"
	"fmt"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
)

// StoreClient has the parameters with which a client connects to a store. The file names are empty
// for a connection without TLS or without a client certificate.
type StoreClient struct {
	Endpoint                  string
	CAFile, CertFile, KeyFile string
	// Others are the endpoints of further members.
	Others []string
}

// Endpoints returns the endpoints of all members.
func (s StoreClient) Endpoints() []string { return append([]string{s.Endpoint}, s.Others...) }

// NewStoreClient returns the parameters for the store of a cluster with the given component name. It is
// [clusterdir.MainStore] for a store that k1m does not run. [clusterdir.Settings.StoreOf] returns the store of a
// resource. The API servers and k1m use the same parameters.
func NewStoreClient(config clusterdir.Config, dir clusterdir.Dir, store string) StoreClient {
	s := config.Settings
	if s.StoreAddress != "" {
		return StoreClient{Endpoint: s.StoreAddress, CAFile: s.StoreCAFile, CertFile: s.StoreCert, KeyFile: s.StoreKey}
	}
	return NewMemberClient(config, dir, s.StoreMembers(store)...)
}

// NewMemberClient returns the parameters for members of a store with the given component names.
func NewMemberClient(config clusterdir.Config, dir clusterdir.Dir, members ...string) StoreClient {
	b := builder{dir: dir}
	client := StoreClient{
		Endpoint: config.Ports.URL(members[0]),
		CAFile:   b.pki("etcd/ca.crt"),
		CertFile: b.pki("apiserver-etcd-client.crt"),
		KeyFile:  b.pki("apiserver-etcd-client.key"),
	}
	for _, member := range members[1:] {
		client.Others = append(client.Others, config.Ports.URL(member))
	}
	return client
}

// Dial returns an etcd client for a store. timeout is the client's DialTimeout. The client is closed
// when ctx is done.
func (s StoreClient) Dial(ctx context.Context, timeout time.Duration) (*clientv3.Client, error) {
	config := clientv3.Config{Endpoints: s.Endpoints(), DialTimeout: timeout, Context: ctx, Logger: zap.NewNop()}
	if s.CAFile != "" || s.CertFile != "" {
		tls, err := transport.TLSInfo{TrustedCAFile: s.CAFile, CertFile: s.CertFile, KeyFile: s.KeyFile}.ClientConfig()
		if err != nil {
			return nil, fmt.Errorf("connecting to the store: %w", err)
		}
		config.TLS = tls
	}
	client, err := clientv3.New(config)
	if err != nil {
		return nil, fmt.Errorf("connecting to the store: %w", err)
	}
	return client, nil
}
