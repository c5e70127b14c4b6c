package component

import (
	"strings"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
)

// proxy stands between the API servers and the store and records what they say. It
// shows the store the certificate that they would show, and them the one of a store.
func (p *plan) proxy() Component {
	settings, ports := p.config.Settings, p.config.Ports
	client := ports.URL(clusterdir.ProxyPort)
	metrics := "http://" + ports.Address(clusterdir.ProxyMetricsPort)
	store := NewStoreClient(p.config, p.dir)

	var a args
	a.add("listen", client)
	a.add("listen-metrics-urls", metrics)
	a.add("cert-file", p.pki("etcd/server.crt"))
	a.add("key-file", p.pki("etcd/server.key"))
	a.add("trusted-ca-file", p.pki("etcd/ca.crt"))
	a.addBool("client-cert-auth", true)
	a.add("endpoints", store.Endpoint)
	if strings.HasPrefix(store.Endpoint, "https:") && store.CAFile != "" {
		a.add("cacert", store.CAFile)
	}
	if store.CertFile != "" {
		a.add("cert", store.CertFile)
		a.add("key", store.KeyFile)
	}
	a.add("record", p.config.TraceFile(p.dir))
	if settings.TraceValues != "" {
		a.add("values", settings.TraceValues)
	}

	component := Component{
		Name:      Proxy,
		Binary:    p.binary("etcd-proxy"),
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

// proxyClient is how API servers reach the proxy: as they would the store of ours.
func (p *plan) proxyClient() StoreClient {
	return StoreClient{
		Endpoint: p.config.Ports.URL(clusterdir.ProxyPort),
		CAFile:   p.pki("etcd/ca.crt"),
		CertFile: p.pki("apiserver-etcd-client.crt"),
		KeyFile:  p.pki("apiserver-etcd-client.key"),
	}
}
