package member

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	schedmetrics "k8s.io/kubernetes/pkg/scheduler/metrics"
)

var (
	objects = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "replica_objects",
		Help:           "Number of objects that this replica keeps, by kind: nodes that it owns, pods on these nodes, reservations and nominations on these nodes, and pods that it assumes if it is the leader",
		StabilityLevel: metrics.ALPHA,
	}, []string{"kind"})
)

// RegisterMetrics registers the metrics of this package at the first call.
var RegisterMetrics = sync.OnceFunc(func() { legacyregistry.MustRegister(objects) })
