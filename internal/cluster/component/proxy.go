package component

import (
	"strings"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
)

// proxy returns etcd-proxy, which forwards calls of the API servers to the store and records them in a
// trace file. It connects to the store with the client certificate of the API servers, and serves the
// API servers with the certificate of the store.
func (b *builder) proxy() Component {
	settings, ports := b.config.Settings, b.config.Ports
	client := ports.URL(clusterdir.ProxyPort)
	metrics := "http://" + ports.Address(clusterdir.ProxyMetricsPort)
	store := NewStoreClient(b.config, b.dir, Store)

	var a args
	a.add("listen", client)
	a.add("listen-metrics-urls", metrics)
	a.add("cert-file", b.pki("etcd/server.crt"))
	a.add("key-file", b.pki("etcd/server.key"))
	a.add("trusted-ca-file", b.pki("etcd/ca.crt"))
	a.addBool("client-cert-auth", true)
	a.add("endpoints", store.Endpoint)
	if strings.HasPrefix(store.Endpoint, "https:") && store.CAFile != "" {
		a.add("cacert", store.CAFile)
	}
	if store.CertFile != "" {
		a.add("cert", store.CertFile)
		a.add("key", store.KeyFile)
	}
	a.add("record", b.config.TraceFile(b.dir))
	if settings.TraceValues != "" {
		a.add("values", settings.TraceValues)
	}

	component := Component{
		Name:      Proxy,
		Binary:    b.binary("etcd-proxy"),
		Args:      a,
		Address:   client,
		Ready:     Probe{URL: metrics + "/readyz"},
		StopGrace: proxyStopGrace,
	}
	if settings.StoreAddress == "" {
		component.DependsOn = []string{Store}
	}
	return component
}

// proxyClient returns the parameters with which API servers connect to etcd-proxy. The certificates are
// the same as for a direct connection to a store that k1m runs.
func (b *builder) proxyClient() StoreClient {
	return StoreClient{
		Endpoint: b.config.Ports.URL(clusterdir.ProxyPort),
		CAFile:   b.pki("etcd/ca.crt"),
		CertFile: b.pki("apiserver-etcd-client.crt"),
		KeyFile:  b.pki("apiserver-etcd-client.key"),
	}
}
