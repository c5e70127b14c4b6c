package replica

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var rejectedAssignments = metrics.NewCounter(&metrics.CounterOpts{
	Subsystem: "scheduler", Name: "replica_rejected_assignments_total",
	Help:           "Number of assignments of hash slots from replicas that were not elected for the term that they claim",
	StabilityLevel: metrics.ALPHA,
})

var registerMetrics = sync.OnceFunc(func() { legacyregistry.MustRegister(rejectedAssignments) })
