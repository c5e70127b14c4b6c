package component

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	componentconfig "k8s.io/component-base/config/v1alpha1"
	scheduler "k8s.io/kube-scheduler/config/v1"
	"sigs.k8s.io/yaml"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
)

const (
	schedulerConfigFile = "kube-scheduler.yaml"

	// replicaGroup is the group of all scheduler replicas of a cluster.
	replicaGroup = "dist-scheduler"

	// With the defaults (50 and 100), the client's rate limit would be the bottleneck.
	schedulerQPS   = 5000
	schedulerBurst = 10000
)

// scheduler returns the scheduler with the given component name. A relay owns no nodes.
func (b *builder) scheduler(name string, relay bool) Component {
	program := b.config.Settings.Scheduler
	var a args
	b.addSecureServing(&a, name, program, b.dir.Kubeconfig(pki.Scheduler.File))
	a.add("config", b.dir.ConfigFile(schedulerConfigFile))
	if b.config.Settings.HasReplicas() {
		a.add("replica-name", name)
		a.add("replica-bind-address", b.config.Ports.Address(clusterdir.ReplicaPort(name)))
		a.add("replica-group", replicaGroup)
		cert, key := pki.ReplicaFiles(name)
		a.add("replica-cert-file", b.pki(cert))
		a.add("replica-key-file", b.pki(key))
		a.add("replica-ca-file", b.pki(pki.ReplicaCAFile))
		if relay {
			a.addBool("replica-relay-only", true)
		}
	}
	if b.config.Settings.SchedulerIntake == clusterdir.IntakeWebhook {
		a.add("intake", clusterdir.IntakeWebhook)
		a.add("intake-bind-address", clusterdir.Loopback)
		a.addInt("intake-port", b.config.Ports[clusterdir.IntakePort(name)])
		a.add("intake-client-ca-file", b.pki("ca.crt"))
		a.add("intake-client-names", pki.WebhookClientName)
	}
	a.addUserArgs(b.config.Settings.SchedulerArgs)

	return Component{
		Name:      name,
		Binary:    b.binary(program),
		Args:      a,
		Env:       b.config.Settings.SchedulerEnv,
		Address:   b.config.Ports.URL(name),
		DependsOn: b.clientDependencies(),
		Ready:     b.secureProbe(name, "/readyz"),
		StopGrace: statelessStopGrace,
	}
}

// EnsureReplicaCertificates creates or renews the certificates with which the schedulers of a cluster
// connect to each other, if there are several. It may be called while they run.
func EnsureReplicaCertificates(config clusterdir.Config, dir clusterdir.Dir, now time.Time) error {
	if !config.Settings.HasReplicas() {
		return nil
	}
	return pki.EnsureReplicas(dir.PKI(), replicaGroup, config.Settings.Schedulers(), now)
}

// schedulerConfig returns the content of the configuration file of all schedulers.
func schedulerConfig(config clusterdir.Config, dir clusterdir.Dir) ([]byte, error) {
	return yaml.Marshal(scheduler.KubeSchedulerConfiguration{
		TypeMeta:       metav1.TypeMeta{APIVersion: scheduler.SchemeGroupVersion.String(), Kind: "KubeSchedulerConfiguration"},
		LeaderElection: schedulerElection(config.Settings.HasReplicas()),
		ClientConnection: componentconfig.ClientConnectionConfiguration{
			Kubeconfig:  dir.Kubeconfig(pki.Scheduler.File),
			ContentType: "application/vnd.kubernetes.protobuf",
			QPS:         schedulerQPS,
			Burst:       schedulerBurst,
		},
	})
}

// schedulerElection enables leader election if there are several schedulers. The Lease is short, so that
// another replica becomes leader about 10 seconds after the leader has exited.
func schedulerElection(several bool) componentconfig.LeaderElectionConfiguration {
	if !several {
		// A single scheduler needs no leader election; see controllerManager.
		return componentconfig.LeaderElectionConfiguration{LeaderElect: new(false)}
	}
	return componentconfig.LeaderElectionConfiguration{
		LeaderElect:   new(true),
		LeaseDuration: metav1.Duration{Duration: 10 * time.Second},
		RenewDeadline: metav1.Duration{Duration: 7 * time.Second},
		RetryPeriod:   metav1.Duration{Duration: 500 * time.Millisecond},
	}
}
