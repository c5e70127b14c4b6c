package component

import (
	"strings"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
)

const (
	// These limits are twice the defaults of kube-apiserver. All clients run on one machine. With the
	// defaults, the API server would throttle them (429) long before the cores are busy.
	maxRequestsInFlight = 800
	maxMutatingInFlight = 400

	// serviceAccountIssuer is the issuer and the audience of service account tokens.
	serviceAccountIssuer = "https://kubernetes.default.svc.cluster.local"
)

// apiServer returns the i-th kube-apiserver.
func (b *builder) apiServer(i int) Component {
	name := clusterdir.APIServerName(i)
	settings, ports := b.config.Settings, b.config.Ports

	var a args
	a.add("bind-address", clusterdir.Loopback)
	a.add("advertise-address", clusterdir.Loopback)
	a.addInt("secure-port", ports[name])
	a.add("tls-cert-file", b.pki("apiserver.crt"))
	a.add("tls-private-key-file", b.pki("apiserver.key"))
	a.add("client-ca-file", b.pki("ca.crt"))
	a.add("kubelet-client-certificate", b.pki("apiserver-kubelet-client.crt"))
	a.add("kubelet-client-key", b.pki("apiserver-kubelet-client.key"))
	a.add("service-cluster-ip-range", serviceCIDR)
	a.add("authorization-mode", "Node,RBAC")
	a.add("enable-admission-plugins", "NodeRestriction")
	a.addInt("max-requests-inflight", maxRequestsInFlight)
	a.addInt("max-mutating-requests-inflight", maxMutatingInFlight)
	// The kubernetes Service has no endpoints: endpoints must not be loopback addresses, and no
	// simulated pod connects to the Service.
	a.add("endpoint-reconciler-type", "none")
	if settings.HasReplicas() {
		// Scheduler replicas need sharded lists and watches, because each watches only its own
		// share of the objects.
		a.add("feature-gates", "ShardedListAndWatch=true")
	}
	if settings.SchedulerIntake == clusterdir.IntakeWebhook {
		a.add("admission-control-config-file", b.dir.ConfigFile(admissionConfigFile))
	}
	if b.gatewayRenewsLeases() {
		// The watch cache would process each renewal that the gateways write, whether or not
		// anybody watches (ADR 18).
		a.add("watch-cache-sizes", "leases.coordination.k8s.io#0")
	}
	b.addStoreClient(&a)
	b.addServiceAccounts(&a)
	b.addFrontProxy(&a)
	a.addUserArgs(settings.APIServerArgs)

	component := Component{
		Name:      name,
		Binary:    b.binary("kube-apiserver"),
		Args:      a,
		Env:       settings.APIServerEnv,
		Address:   ports.URL(name),
		Ready:     b.secureProbe(name, "/readyz"),
		StopGrace: statelessStopGrace,
	}
	if settings.Trace {
		component.DependsOn = []string{Proxy}
	} else {
		component.DependsOn = settings.StoreComponents()
	}
	return component
}

// addStoreClient adds the flags with which an API server connects to its stores, or to etcd-proxy.
func (b *builder) addStoreClient(a *args) {
	client := NewStoreClient(b.config, b.dir, Store)
	if b.config.Settings.Trace {
		client = b.proxyClient()
	}
	a.add("etcd-servers", strings.Join(client.Endpoints(), ","))
	if client.CAFile != "" {
		a.add("etcd-cafile", client.CAFile)
	}
	if client.CertFile != "" {
		a.add("etcd-certfile", client.CertFile)
		a.add("etcd-keyfile", client.KeyFile)
	}
	if own := b.config.Settings.OwnStores(); len(own) > 0 {
		overrides := make([]string, len(own))
		for i, resource := range own {
			overrides[i] = clusterdir.GroupOf(resource) + "/" + resource + "#" + b.config.Ports.URL(clusterdir.OwnStoreName(resource))
		}
		a.add("etcd-servers-overrides", strings.Join(overrides, ","))
	}
}

func (b *builder) addServiceAccounts(a *args) {
	a.add("service-account-issuer", serviceAccountIssuer)
	a.add("service-account-key-file", b.pki("sa.pub"))
	a.add("service-account-signing-key-file", b.pki("sa.key"))
}

// addFrontProxy adds the flags for the front proxy, which the aggregation layer uses.
func (b *builder) addFrontProxy(a *args) {
	a.add("proxy-client-cert-file", b.pki("front-proxy-client.crt"))
	a.add("proxy-client-key-file", b.pki("front-proxy-client.key"))
	a.add("requestheader-client-ca-file", b.pki("front-proxy-ca.crt"))
	a.add("requestheader-allowed-names", "front-proxy-client")
	a.add("requestheader-extra-headers-prefix", "X-Remote-Extra-")
	a.add("requestheader-group-headers", "X-Remote-Group")
	a.add("requestheader-username-headers", "X-Remote-User")
	a.add("requestheader-uid-headers", "X-Remote-Uid")
}
