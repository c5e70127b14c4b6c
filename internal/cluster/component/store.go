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

const (
	// etcd's default of 2 GiB is full at a few hundred thousand pods.
	etcdQuotaBytes = 8 << 30
	// The API server's consistent reads from cache wait for progress
	// notifications; etcd's default of 10 minutes would stall them.
	watchProgressInterval = "5s"
)

func (p *plan) store() Component {
	settings, ports := p.config.Settings, p.config.Ports
	client := ports.URL("store")
	metrics := "http://" + ports.Address("store-metrics")

	var a args
	a.add("name", p.config.Name)
	if settings.KeepsData() {
		a.add("data-dir", clusterdir.StoreDir(p.config.DataDir(p.dir), settings.Store))
	}
	a.add("listen-client-urls", client)
	a.add("advertise-client-urls", client)
	a.add("listen-metrics-urls", metrics)
	a.add("cert-file", p.pki("etcd/server.crt"))
	a.add("key-file", p.pki("etcd/server.key"))
	a.add("trusted-ca-file", p.pki("etcd/ca.crt"))
	a.addBool("client-cert-auth", true)
	a.add("watch-progress-notify-interval", watchProgressInterval)
	if settings.Store == clusterdir.StoreEtcd {
		p.addEtcdOnly(&a)
	} else {
		a.add("wal-mode", settings.WALMode)
	}
	a.addUser(settings.StoreArgs)

	return Component{
		Name:      Store,
		Binary:    p.binary(settings.Store),
		Args:      a,
		Address:   client,
		Ready:     Probe{URL: metrics + "/readyz"},
		StopGrace: MaxStopGrace,
		Volatile:  settings.WALMode == clusterdir.WALNone,
	}
}

// addEtcdOnly sets what mem_etcd does not have: peers and a quota.
func (p *plan) addEtcdOnly(a *args) {
	peer := p.config.Ports.URL("store-peer")
	a.add("listen-peer-urls", peer)
	a.add("initial-advertise-peer-urls", peer)
	a.add("initial-cluster", p.config.Name+"="+peer)
	a.add("peer-cert-file", p.pki("etcd/peer.crt"))
	a.add("peer-key-file", p.pki("etcd/peer.key"))
	a.add("peer-trusted-ca-file", p.pki("etcd/ca.crt"))
	a.addBool("peer-client-cert-auth", true)
	a.addInt("quota-backend-bytes", etcdQuotaBytes)
}

// StoreClient is how clients reach the store, with mutual TLS.
type StoreClient struct {
	Endpoint                  string
	CAFile, CertFile, KeyFile string
}

// NewStoreClient is the same for the API server and for k1m itself.
func NewStoreClient(config clusterdir.Config, dir clusterdir.Dir) StoreClient {
	s := config.Settings
	if s.StoreAddress != "" {
		return StoreClient{s.StoreAddress, s.StoreCAFile, s.StoreCert, s.StoreKey}
	}
	p := plan{dir: dir}
	return StoreClient{
		Endpoint: config.Ports.URL("store"),
		CAFile:   p.pki("etcd/ca.crt"),
		CertFile: p.pki("apiserver-etcd-client.crt"),
		KeyFile:  p.pki("apiserver-etcd-client.key"),
	}
}

// Dial makes a client of the store, which connects within timeout and ends with ctx.
func (s StoreClient) Dial(ctx context.Context, timeout time.Duration) (*clientv3.Client, error) {
	config := clientv3.Config{Endpoints: []string{s.Endpoint}, DialTimeout: timeout, Context: ctx, Logger: zap.NewNop()}
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
