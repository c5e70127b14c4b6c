package component

import (
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
)

const (
	// Twice the defaults: the loader and the controllers come from one machine
	// and would be told 429 long before its cores are busy.
	maxRequestsInFlight = 800
	maxMutatingInFlight = 400

	// Who signs service-account tokens, and the audience they are for.
	serviceAccountIssuer = "https://kubernetes.default.svc.cluster.local"
)

func (p *plan) apiServer(i int) Component {
	name := clusterdir.APIServerName(i)
	settings, ports := p.config.Settings, p.config.Ports

	var a args
	a.add("bind-address", clusterdir.Loopback)
	a.add("advertise-address", clusterdir.Loopback)
	a.addInt("secure-port", ports[name])
	a.add("tls-cert-file", p.pki("apiserver.crt"))
	a.add("tls-private-key-file", p.pki("apiserver.key"))
	a.add("client-ca-file", p.pki("ca.crt"))
	a.add("kubelet-client-certificate", p.pki("apiserver-kubelet-client.crt"))
	a.add("kubelet-client-key", p.pki("apiserver-kubelet-client.key"))
	a.add("service-cluster-ip-range", serviceCIDR)
	a.add("authorization-mode", "Node,RBAC")
	a.add("enable-admission-plugins", "NodeRestriction")
	a.addInt("max-requests-inflight", maxRequestsInFlight)
	a.addInt("max-mutating-requests-inflight", maxMutatingInFlight)
	// Endpoints of the kubernetes Service must not be loopback addresses, and
	// no simulated pod could reach them.
	a.add("endpoint-reconciler-type", "none")
	if settings.SharesNodes() {
		// Schedulers that share the nodes watch their share only.
		a.add("feature-gates", "ShardedListAndWatch=true")
	}
	p.addStoreClient(&a)
	p.addServiceAccounts(&a)
	p.addFrontProxy(&a)
	a.addUser(settings.APIServerArgs)

	component := Component{
		Name:      name,
		Binary:    p.binary("kube-apiserver"),
		Args:      a,
		Env:       settings.APIServerEnv,
		Address:   ports.URL(name),
		Ready:     p.secureProbe(name, "/readyz"),
		StopGrace: statelessStopGrace,
	}
	switch {
	case settings.Trace:
		component.DependsOn = []string{Proxy}
	case settings.StoreAddress == "":
		component.DependsOn = []string{Store}
	}
	return component
}

func (p *plan) addStoreClient(a *args) {
	client := NewStoreClient(p.config, p.dir)
	if p.config.Settings.Trace {
		client = p.proxyClient()
	}
	a.add("etcd-servers", client.Endpoint)
	if client.CAFile != "" {
		a.add("etcd-cafile", client.CAFile)
	}
	if client.CertFile != "" {
		a.add("etcd-certfile", client.CertFile)
		a.add("etcd-keyfile", client.KeyFile)
	}
}

func (p *plan) addServiceAccounts(a *args) {
	a.add("service-account-issuer", serviceAccountIssuer)
	a.add("service-account-key-file", p.pki("sa.pub"))
	a.add("service-account-signing-key-file", p.pki("sa.key"))
}

func (p *plan) addFrontProxy(a *args) {
	a.add("proxy-client-cert-file", p.pki("front-proxy-client.crt"))
	a.add("proxy-client-key-file", p.pki("front-proxy-client.key"))
	a.add("requestheader-client-ca-file", p.pki("front-proxy-ca.crt"))
	a.add("requestheader-allowed-names", "front-proxy-client")
	a.add("requestheader-extra-headers-prefix", "X-Remote-Extra-")
	a.add("requestheader-group-headers", "X-Remote-Group")
	a.add("requestheader-username-headers", "X-Remote-User")
}
