package component

import (
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
)

const (
	// kube-controller-manager's defaults (20 requests/s and, for most controllers, 5 workers) would
	// make the controllers the bottleneck of a large cluster.
	controllerQPS     = 1000
	controllerBurst   = 2000
	controllerWorkers = 50
)

// controllerManager returns kube-controller-manager.
func (b *builder) controllerManager() Component {
	kubeconfig := b.dir.Kubeconfig(pki.ControllerManager.File)
	var a args
	b.addSecureServing(&a, ControllerManager, ControllerManager, kubeconfig)
	a.add("kubeconfig", kubeconfig)
	a.add("root-ca-file", b.pki("ca.crt"))
	a.add("cluster-signing-cert-file", b.pki("ca.crt"))
	a.add("cluster-signing-key-file", b.pki("ca.key"))
	a.add("service-account-private-key-file", b.pki("sa.key"))
	a.addBool("use-service-account-credentials", true)
	a.add("service-cluster-ip-range", serviceCIDR)
	// A single process needs no leader election. With leader election, a restarted process would
	// wait until the Lease of the exited process expires.
	a.addBool("leader-elect", false)
	a.addInt("kube-api-qps", controllerQPS)
	a.addInt("kube-api-burst", controllerBurst)
	for _, kind := range []string{"deployment", "replicaset", "statefulset", "daemonset", "job", "endpoint", "service-endpoint", "namespace", "gc", "serviceaccount-token"} {
		a.addInt("concurrent-"+kind+"-syncs", controllerWorkers)
	}
	a.addUserArgs(b.config.Settings.ControllerManagerArgs)

	return Component{
		Name:      ControllerManager,
		Binary:    b.binary("kube-controller-manager"),
		Args:      a,
		Env:       b.config.Settings.ControllerManagerEnv,
		Address:   b.config.Ports.URL(ControllerManager),
		DependsOn: b.clientDependencies(),
		Ready:     b.secureProbe(ControllerManager, "/healthz"),
		StopGrace: statelessStopGrace,
	}
}
