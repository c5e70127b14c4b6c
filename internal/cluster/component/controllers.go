package component

import (
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
)

const (
	// The defaults (20 requests/s, 5 workers) are for small clusters; here the
	// API server is the limit that we want to see.
	controllerQPS     = 1000
	controllerBurst   = 2000
	controllerWorkers = 50
)

func (p *plan) controllerManager() Component {
	kubeconfig := p.dir.Kubeconfig(pki.ControllerManager.File)
	var a args
	p.addSecureServing(&a, ControllerManager, ControllerManager, kubeconfig)
	a.add("kubeconfig", kubeconfig)
	a.add("root-ca-file", p.pki("ca.crt"))
	a.add("cluster-signing-cert-file", p.pki("ca.crt"))
	a.add("cluster-signing-key-file", p.pki("ca.key"))
	a.add("service-account-private-key-file", p.pki("sa.key"))
	a.addBool("use-service-account-credentials", true)
	a.add("service-cluster-ip-range", serviceCIDR)
	// There is one, and its supervisor restarts it: an election only adds the
	// wait for the lease of a predecessor that died.
	a.addBool("leader-elect", false)
	a.addInt("kube-api-qps", controllerQPS)
	a.addInt("kube-api-burst", controllerBurst)
	for _, kind := range []string{"deployment", "replicaset", "statefulset", "daemonset", "job", "endpoint", "service-endpoint", "namespace", "gc", "serviceaccount-token"} {
		a.addInt("concurrent-"+kind+"-syncs", controllerWorkers)
	}
	a.addUser(p.config.Settings.ControllerManagerArgs)

	return Component{
		Name:      ControllerManager,
		Binary:    p.binary("kube-controller-manager"),
		Args:      a,
		Address:   p.config.Ports.URL(ControllerManager),
		DependsOn: p.apiServerNames(),
		Ready:     p.secureProbe(ControllerManager, "/healthz"),
		StopGrace: statelessStopGrace,
	}
}

// scheduler is one of those that there are; a relay is one that owns no nodes.
func (p *plan) scheduler(name string, relay bool) Component {
	program := p.config.Settings.Scheduler
	var a args
	p.addSecureServing(&a, name, program, p.dir.Kubeconfig(pki.Scheduler.File))
	a.add("config", p.dir.ConfigFile(schedulerConfigFile))
	if p.config.Settings.SharesNodes() {
		a.add("replica-name", name)
		a.add("replica-bind-address", p.config.Ports.Address(clusterdir.ReplicaPort(name)))
		a.add("replica-cert-file", p.pki(program+".crt"))
		a.add("replica-key-file", p.pki(program+".key"))
		a.add("replica-ca-file", p.pki("ca.crt"))
		if relay {
			a.addBool("replica-relay-only", true)
		}
	}
	if p.config.Settings.SchedulerIntake == clusterdir.IntakeWebhook {
		a.add("intake", clusterdir.IntakeWebhook)
		a.add("intake-bind-address", clusterdir.Loopback)
		a.addInt("intake-port", p.config.Ports[clusterdir.IntakePort(name)])
	}
	a.addUser(p.config.Settings.SchedulerArgs)

	return Component{
		Name:      name,
		Binary:    p.binary(program),
		Args:      a,
		Env:       p.config.Settings.SchedulerEnv,
		Address:   p.config.Ports.URL(name),
		DependsOn: p.apiServerNames(),
		Ready:     p.secureProbe(name, "/readyz"),
		StopGrace: statelessStopGrace,
	}
}

// addSecureServing adds what serves on the port of a component, with the certificate of
// its program.
func (p *plan) addSecureServing(a *args, name, program, kubeconfig string) {
	a.add("bind-address", clusterdir.Loopback)
	a.addInt("secure-port", p.config.Ports[name])
	a.add("tls-cert-file", p.pki(program+".crt"))
	a.add("tls-private-key-file", p.pki(program+".key"))
	a.add("client-ca-file", p.pki("ca.crt"))
	a.add("requestheader-client-ca-file", p.pki("front-proxy-ca.crt"))
	a.add("authentication-kubeconfig", kubeconfig)
	a.add("authorization-kubeconfig", kubeconfig)
}

func (p *plan) kwok() Component {
	address := p.config.Ports.Address(Kwok)
	var a args
	a.add("kubeconfig", p.dir.Kubeconfig(pki.Kwok.File))
	a.add("config", p.dir.ConfigFile(kwokConfigFile))
	a.add("server-address", address)
	// At INFO it writes a line for every heartbeat of every node.
	a.add("v", "WARN")
	a.addUser(p.config.Settings.KwokArgs)

	return Component{
		Name:      Kwok,
		Binary:    p.binary("kwok"),
		Args:      a,
		Address:   "http://" + address,
		DependsOn: p.apiServerNames(),
		Ready:     Probe{URL: "http://" + address + "/healthz"},
		StopGrace: statelessStopGrace,
	}
}
