package scheduler

import (
	"sync"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	upstream "k8s.io/kubernetes/pkg/scheduler/metrics"
)

// How the node for a pod was found.
const (
	rankedByIndex  = "index"
	rankedBySearch = "search"
)

var (
	decisions = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: upstream.SchedulerSubsystem, Name: "node_search_duration_seconds",
		Help:           "Time to find the node for a pod, by whether the index found it or upstream's own search",
		Buckets:        metrics.ExponentialBuckets(0.000001, 4, 13),
		StabilityLevel: metrics.ALPHA,
	}, []string{"by"})
	fallbacks = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: upstream.SchedulerSubsystem, Name: "index_fallbacks_total",
		Help:           "Pods for which upstream's own search was used, by the reason",
		StabilityLevel: metrics.ALPHA,
	}, []string{"reason"})
	sizes = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Subsystem: upstream.SchedulerSubsystem, Name: "index_size",
		Help:           "Number of nodes, states of nodes, and classes of pods in the index",
		StabilityLevel: metrics.ALPHA,
	}, []string{"of"})
	register sync.Once
)

func registerMetrics() {
	register.Do(func() { legacyregistry.MustRegister(decisions, fallbacks, sizes) })
}

func observe(by string, start time.Time) {
	decisions.WithLabelValues(by).Observe(time.Since(start).Seconds())
}
