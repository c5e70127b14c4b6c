package component

import (
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
)

const (
	// A few hundred thousand pods exceed etcd's default quota of 2 GiB.
	etcdQuotaBytes = 8 << 30
	// watchProgressInterval is short, because consistent reads from the API server's watch cache wait
	// for progress notifications. etcd's default interval is 10 minutes.
	watchProgressInterval = "5s"
	// leasePrefix is the prefix of the keys of all Leases, which gateways watch, and nodeLeasePrefix that of the keys of
	// node Leases, which they write. They need no others.
	leasePrefix     = "/registry/leases/"
	nodeLeasePrefix = leasePrefix + "kube-node-lease/"
)

// store returns the store with the given component name, which is mem_etcd or etcd.
func (b *builder) store(name string) Component {
	settings, ports := b.config.Settings, b.config.Ports
	client := ports.URL(name)
	metrics := "http://" + ports.Address(clusterdir.StoreMetricsPort(name))

	var a args
	a.add("name", b.config.Name)
	if settings.KeepsData() {
		a.add("data-dir", settings.StoreDir(b.config.DataDir(b.dir), name))
	}
	a.add("listen-client-urls", client)
	a.add("advertise-client-urls", client)
	a.add("listen-metrics-urls", metrics)
	a.add("cert-file", b.pki("etcd/server.crt"))
	a.add("key-file", b.pki("etcd/server.key"))
	a.add("trusted-ca-file", b.pki("etcd/ca.crt"))
	a.addBool("client-cert-auth", true)
	a.add("watch-progress-notify-interval", watchProgressInterval)
	if settings.Store == clusterdir.StoreEtcd {
		b.addEtcdOnly(&a, name)
	} else {
		a.add("wal-mode", settings.WALMode)
		// Without permissions, a client could do everything. A store without Leases has none of these keys.
		if len(settings.GatewayNames()) > 0 {
			a.add("client-cert-permission", pki.GatewayStoreName+"=readwrite:"+nodeLeasePrefix)
			a.add("client-cert-permission", pki.GatewayStoreName+"=read:"+leasePrefix)
		}
	}
	a.addUserArgs(settings.StoreArgs)

	return Component{
		Name:      name,
		Binary:    b.binary(settings.Store),
		Args:      a,
		Address:   client,
		Ready:     Probe{URL: metrics + "/readyz"},
		StopGrace: MaxStopGrace,
		Volatile:  settings.WALMode == clusterdir.WALNone,
	}
}

// addEtcdOnly adds the flags for peers and for the quota. k1m sets them only for etcd.
func (b *builder) addEtcdOnly(a *args, name string) {
	peer := b.config.Ports.URL(clusterdir.StorePeerPort(name))
	a.add("listen-peer-urls", peer)
	a.add("initial-advertise-peer-urls", peer)
	a.add("initial-cluster", b.config.Name+"="+peer)
	a.add("peer-cert-file", b.pki("etcd/peer.crt"))
	a.add("peer-key-file", b.pki("etcd/peer.key"))
	a.add("peer-trusted-ca-file", b.pki("etcd/ca.crt"))
	a.addBool("peer-client-cert-auth", true)
	a.addInt("quota-backend-bytes", etcdQuotaBytes)
}
