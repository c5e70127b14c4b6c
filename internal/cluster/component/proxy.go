package component

import (
	"strings"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
)

// proxy is etcd-proxy, which relays calls between the API servers and the store and records
// them in a trace file. It uses the API servers' client certificate towards the store and the
// store's serving certificate towards the API servers.
func (b *builder) proxy() Component {
	settings, ports := b.config.Settings, b.config.Ports
	client := ports.URL(clusterdir.ProxyPort)
	metrics := "http://" + ports.Address(clusterdir.ProxyMetricsPort)
	store := NewStoreClient(b.config, b.dir)

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

// proxyClient returns the parameters with which API servers connect to the proxy. The certificates are
// those for a direct connection to the store.
func (b *builder) proxyClient() StoreClient {
	return StoreClient{
		Endpoint: b.config.Ports.URL(clusterdir.ProxyPort),
		CAFile:   b.pki("etcd/ca.crt"),
		CertFile: b.pki("apiserver-etcd-client.crt"),
		KeyFile:  b.pki("apiserver-etcd-client.key"),
	}
}
