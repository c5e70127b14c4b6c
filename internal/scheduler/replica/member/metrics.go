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
		Help:           "Objects of this replica: nodes that it owns, pods and reservations on them, and, as the leader, assumed pods",
		StabilityLevel: metrics.ALPHA,
	}, []string{"of"})
)

// RegisterMetrics registers the metrics of this package, once.
var RegisterMetrics = sync.OnceFunc(func() { legacyregistry.MustRegister(holding) })
