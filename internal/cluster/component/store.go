package component

import (
	"os"
	"strings"

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

// store returns the members of a store, which is mem_etcd or etcd.
func (b *builder) store(store string) (members []Component) {
	for _, name := range b.config.Settings.StoreMembers(store) {
		members = append(members, b.member(store, name))
	}
	return members
}

// member returns the member of a store with the given component name.
func (b *builder) member(store, name string) Component {
	settings, ports := b.config.Settings, b.config.Ports
	client := ports.URL(name)
	metrics := "http://" + ports.Address(clusterdir.StoreMetricsPort(name))

	var a args
	a.add("name", MemberName(b.config, name))
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
	if settings.Store == clusterdir.StoreEtcd || settings.HasStoreReplicas() {
		b.addPeers(&a, store, name)
	}
	if settings.Store == clusterdir.StoreEtcd {
		a.addInt("quota-backend-bytes", etcdQuotaBytes)
	} else {
		b.addDurability(&a)
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
		StartArgs: b.initialState(name),
		Address:   client,
		Ready:     Probe{URL: metrics + "/readyz"},
		StopGrace: MaxStopGrace,
		Volatile:  settings.WALMode == clusterdir.WALNone,
	}
}

// addDurability adds the flag that says what a mem_etcd keeps on the disk.
func (b *builder) addDurability(a *args) {
	if settings := b.config.Settings; settings.HasStoreReplicas() {
		a.add("replication-log", settings.ReplicationLog)
	} else {
		a.add("wal-mode", settings.WALMode)
	}
}

// MemberName returns the flag --name of the member of a store with the given component name.
func MemberName(config clusterdir.Config, member string) string {
	if config.Settings.HasStoreReplicas() {
		return member
	}
	return config.Name
}

// addPeers adds the flags for the other members. A member of etcd has them even if there are no others.
func (b *builder) addPeers(a *args, store, name string) {
	peer := b.config.Ports.URL(clusterdir.StorePeerPort(name))
	listen := peer
	if b.config.Settings.ForwardsPeers() {
		listen = b.config.Ports.URL(clusterdir.StorePeerListenPort(name))
	}
	a.add("listen-peer-urls", listen)
	a.add("initial-advertise-peer-urls", peer)
	a.add("initial-cluster", InitialCluster(b.config, store))
	a.add("peer-cert-file", b.pki("etcd/peer.crt"))
	a.add("peer-key-file", b.pki("etcd/peer.key"))
	a.add("peer-trusted-ca-file", b.pki("etcd/ca.crt"))
	a.addBool("peer-client-cert-auth", true)
}

// InitialCluster returns the flag --initial-cluster of all members of a store.
func InitialCluster(config clusterdir.Config, store string) string {
	var members []string
	for _, name := range config.Settings.StoreMembers(store) {
		members = append(members, MemberName(config, name)+"="+config.Ports.URL(clusterdir.StorePeerPort(name)))
	}
	return strings.Join(members, ",")
}

// initialState returns a function with the flag --initial-cluster-state of a member, which changes when the member is
// replaced; nil for a store with one member.
func (b *builder) initialState(name string) func() []string {
	settings := b.config.Settings
	if !settings.HasStoreReplicas() {
		return nil
	}
	joined := settings.MemberFiles(b.config.DataDir(b.dir), name).Joined
	return func() []string {
		if _, err := os.Stat(joined); err == nil {
			return []string{"--initial-cluster-state=existing"}
		}
		return []string{"--initial-cluster-state=new"}
	}
}
