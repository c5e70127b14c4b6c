package wire

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var (
	linkResets = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: "scheduler", Name: "replica_link_resets_total",
		Help:           "Connections to another replica that have ended, after which it was told everything anew",
		StabilityLevel: metrics.ALPHA,
	}, []string{"replica"})
	register sync.Once
)

// RegisterMetrics makes the metrics of this package known.
func RegisterMetrics() { register.Do(func() { legacyregistry.MustRegister(linkResets) }) }
