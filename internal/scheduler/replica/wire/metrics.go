package wire

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var (
	linkResets = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: "scheduler", Name: "replica_link_resets_total",
		Help:           "Number of connections to another replica that ended or could not be opened, by replica; after each, this replica sends its whole state to the other one again",
		StabilityLevel: metrics.ALPHA,
	}, []string{"replica"})
)

// RegisterMetrics registers the metrics of this package at the first call.
var RegisterMetrics = sync.OnceFunc(func() { legacyregistry.MustRegister(linkResets) })
