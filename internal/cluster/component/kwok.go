package component

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	nodefast "sigs.k8s.io/kwok/kustomize/stage/node/fast"
	nodeheartbeat "sigs.k8s.io/kwok/kustomize/stage/node/heartbeat-with-lease"
	podfast "sigs.k8s.io/kwok/kustomize/stage/pod/fast"
	kwok "sigs.k8s.io/kwok/pkg/apis/config/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/kube"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
)

const (
	kwokConfigFile = "kwok.yaml"

	// kwokParallelism is the number of stages that kwok plays in parallel. The default is 4. Each
	// stage waits for a request to the API server, so 4 stages leave most cores idle.
	kwokParallelism = 64
)

// NodeLeaseSeconds is the duration of the Leases of simulated nodes.
const NodeLeaseSeconds = 40

// kwok returns kwok, which simulates the nodes and the pods that are bound to them.
func (b *builder) kwok() Component {
	address := b.config.Ports.Address(Kwok)
	var a args
	a.add("kubeconfig", b.dir.Kubeconfig(pki.Kwok.File))
	a.add("config", b.dir.ConfigFile(kwokConfigFile))
	a.add("server-address", address)
	// At level INFO, kwok logs every heartbeat of every node.
	a.add("v", "WARN")
	a.addUserArgs(b.config.Settings.KwokArgs)

	return Component{
		Name:      Kwok,
		Binary:    b.binary("kwok"),
		Args:      a,
		Address:   "http://" + address,
		DependsOn: b.clientDependencies(),
		Ready:     Probe{URL: "http://" + address + "/healthz"},
		StopGrace: statelessStopGrace,
	}
}

// kwokConfig returns the content of kwok's configuration file: the options, and then the stages that
// simulated nodes and pods go through.
func kwokConfig(clusterdir.Config, clusterdir.Dir) ([]byte, error) {
	config, err := yaml.Marshal(kwok.KwokConfiguration{
		TypeMeta: metav1.TypeMeta{APIVersion: kwok.GroupVersion.String(), Kind: kwok.KwokConfigurationKind},
		Options: kwok.KwokConfigurationOptions{
			CIDR:                              podCIDR,
			NodeIP:                            clusterdir.Loopback,
			ManageAllNodes:                    new(false),
			ManageNodesWithAnnotationSelector: kube.SimulatedNodeAnnotation + "=" + kube.SimulatedNodeValue,
			NodeLeaseDurationSeconds:          NodeLeaseSeconds,
			NodeLeaseParallelism:              kwokParallelism,
			NodePlayStageParallelism:          kwokParallelism,
			PodPlayStageParallelism:           kwokParallelism,
			PodsOnNodeSyncParallelism:         kwokParallelism,
			EnablePodsOnNodeSyncListPager:     new(false),
			EnablePodsOnNodeSyncStreamWatch:   new(true),
		},
	})
	if err != nil {
		return nil, err
	}
	documents := []string{
		string(config),
		nodefast.DefaultNodeInit,
		nodeheartbeat.DefaultNodeHeartbeatWithLease,
		podfast.DefaultPodReady,
		podfast.DefaultPodComplete,
		podfast.DefaultPodDelete,
	}
	return []byte(strings.Join(documents, "\n---\n")), nil
}
