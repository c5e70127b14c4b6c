package component

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	componentconfig "k8s.io/component-base/config/v1alpha1"
	scheduler "k8s.io/kube-scheduler/config/v1"
	nodefast "sigs.k8s.io/kwok/kustomize/stage/node/fast"
	nodeheartbeat "sigs.k8s.io/kwok/kustomize/stage/node/heartbeat-with-lease"
	podfast "sigs.k8s.io/kwok/kustomize/stage/pod/fast"
	kwok "sigs.k8s.io/kwok/pkg/apis/config/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
)

const (
	schedulerConfigFile = "kube-scheduler.yaml"
	kwokConfigFile      = "kwok.yaml"

	schedulerQPS   = 5000
	schedulerBurst = 10000

	// kwok plays 4 stages at a time by default; each waits for one request to
	// the API server, so 4 leave most of a machine idle.
	kwokParallelism = 64

	nodeLeaseSeconds = 40

	// NodeAnnotation marks the nodes that kwok plays.
	NodeAnnotation = "kwok.x-k8s.io/node"
	NodeSimulated  = "fake"
)

// WriteConfigFiles writes the files that components read beside their flags.
func WriteConfigFiles(config clusterdir.Config, dir clusterdir.Dir) error {
	files := []struct {
		name    string
		content func(clusterdir.Config, clusterdir.Dir) ([]byte, error)
	}{
		{schedulerConfigFile, schedulerConfig},
		{kwokConfigFile, kwokConfig},
	}
	for _, file := range files {
		content, err := file.content(config, dir)
		if err == nil {
			err = clusterdir.WriteFileAtomic(dir.ConfigFile(file.name), content, 0o600)
		}
		if err != nil {
			return fmt.Errorf("writing %s: %w", dir.ConfigFile(file.name), err)
		}
	}
	return nil
}

func schedulerConfig(config clusterdir.Config, dir clusterdir.Dir) ([]byte, error) {
	return yaml.Marshal(scheduler.KubeSchedulerConfiguration{
		TypeMeta:       metav1.TypeMeta{APIVersion: scheduler.SchemeGroupVersion.String(), Kind: "KubeSchedulerConfiguration"},
		LeaderElection: schedulerElection(config.Settings.SharesNodes()),
		ClientConnection: componentconfig.ClientConnectionConfiguration{
			Kubeconfig:  dir.Kubeconfig(pki.Scheduler.File),
			ContentType: "application/vnd.kubernetes.protobuf",
			QPS:         schedulerQPS,
			Burst:       schedulerBurst,
		},
	})
}

// schedulerElection lets one of several schedulers lead, and another soon after it.
func schedulerElection(several bool) componentconfig.LeaderElectionConfiguration {
	if !several {
		// Single, as the controller manager is.
		return componentconfig.LeaderElectionConfiguration{LeaderElect: new(false)}
	}
	return componentconfig.LeaderElectionConfiguration{
		LeaderElect:   new(true),
		LeaseDuration: metav1.Duration{Duration: 10 * time.Second},
		RenewDeadline: metav1.Duration{Duration: 7 * time.Second},
		RetryPeriod:   metav1.Duration{Duration: 500 * time.Millisecond},
	}
}

func kwokConfig(clusterdir.Config, clusterdir.Dir) ([]byte, error) {
	config, err := yaml.Marshal(kwok.KwokConfiguration{
		TypeMeta: metav1.TypeMeta{APIVersion: kwok.GroupVersion.String(), Kind: kwok.KwokConfigurationKind},
		Options: kwok.KwokConfigurationOptions{
			CIDR:                              podCIDR,
			NodeIP:                            clusterdir.Loopback,
			ManageAllNodes:                    new(false),
			ManageNodesWithAnnotationSelector: NodeAnnotation + "=" + NodeSimulated,
			NodeLeaseDurationSeconds:          nodeLeaseSeconds,
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
