package component

import (
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
)

const (
	// kube-controller-manager's defaults (20 requests/s and, for most controllers, 5 workers) would
	// make the controllers the bottleneck of a large cluster.
	controllerQPS     = 1000
	controllerBurst   = 2000
	controllerWorkers = 50

	// The lease of the leading controller manager. With upstream's values (15 s, 10 s and 2 s), a standby would need
	// longer to notice that the leader has ended or has released the lease.
	controllerLease         = 10 * time.Second
	controllerRenewDeadline = 7 * time.Second
	controllerRetryPeriod   = 500 * time.Millisecond

	// warmControllerManager is the program of a warm standby, and of the leader that has one.
	warmControllerManager = "warm-controller-manager"
	// warmStopGrace lets the controllers of warm-controller-manager stop before it releases its lease.
	warmStopGrace = 10 * time.Second
)

// controllerManager returns the controller manager with the given component name.
func (b *builder) controllerManager(name string) Component {
	kubeconfig := b.dir.Kubeconfig(pki.ControllerManager.File)
	var a args
	b.addSecureServing(&a, name, ControllerManager, kubeconfig)
	a.add("kubeconfig", kubeconfig)
	a.add("root-ca-file", b.pki("ca.crt"))
	a.add("cluster-signing-cert-file", b.pki("ca.crt"))
	a.add("cluster-signing-key-file", b.pki("ca.key"))
	a.add("service-account-private-key-file", b.pki("sa.key"))
	a.addBool("use-service-account-credentials", true)
	a.add("service-cluster-ip-range", serviceCIDR)
	b.addElection(&a)
	a.addInt("kube-api-qps", controllerQPS)
	a.addInt("kube-api-burst", controllerBurst)
	for _, kind := range []string{"deployment", "replicaset", "statefulset", "daemonset", "job", "endpoint", "service-endpoint", "namespace", "gc", "serviceaccount-token"} {
		a.addInt("concurrent-"+kind+"-syncs", controllerWorkers)
	}
	a.addUserArgs(b.config.Settings.ControllerManagerArgs)

	program, grace := ControllerManager, statelessStopGrace
	if b.config.Settings.Standby == clusterdir.StandbyWarm {
		program, grace = warmControllerManager, warmStopGrace
	}
	return Component{
		Name:      name,
		Binary:    b.binary(program),
		Args:      a,
		Env:       b.config.Settings.ControllerManagerEnv,
		Address:   b.config.Ports.URL(name),
		DependsOn: b.clientDependencies(),
		Ready:     b.secureProbe(name, "/healthz"),
		StopGrace: grace,
	}
}

// addElection adds the flags of leader election. A single process needs none: with leader election, a restarted process
// would wait until the Lease of the exited process expires.
func (b *builder) addElection(a *args) {
	if b.config.Settings.ControllerManagers < 2 {
		a.addBool("leader-elect", false)
		return
	}
	a.addBool("leader-elect", true)
	a.add("leader-elect-lease-duration", controllerLease.String())
	a.add("leader-elect-renew-deadline", controllerRenewDeadline.String())
	a.add("leader-elect-retry-period", controllerRetryPeriod.String())
}
