package wire

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var (
	linkResets = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: "scheduler", Name: "replica_link_resets_total",
		Help:           "Number of connections to another replica that ended; each requires a full resend",
		StabilityLevel: metrics.ALPHA,
	}, []string{"replica"})
)

// RegisterMetrics registers the metrics of this package.
var RegisterMetrics = sync.OnceFunc(func() { legacyregistry.MustRegister(linkResets) })
