package member

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	schedmetrics "k8s.io/kubernetes/pkg/scheduler/metrics"
)

var (
	holding = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "replica_holds",
		Help:           "What this replica has: nodes that it owns, pods on them, reservations for pods that are to come; and pods that it assumes to be on nodes, as the leader",
		StabilityLevel: metrics.ALPHA,
	}, []string{"of"})
	registerMember sync.Once
)

// RegisterMetrics registers the metrics of this package, once.
func RegisterMetrics() {
	registerMember.Do(func() { legacyregistry.MustRegister(holding) })
}
