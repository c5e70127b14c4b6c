package rank

import (
	"sync"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	schedmetrics "k8s.io/kubernetes/pkg/scheduler/metrics"
)

var (
	decisions = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "node_search_duration_seconds",
		Help:           "Time to find the node for a pod, by index or by upstream's full scan (search)",
		Buckets:        metrics.ExponentialBuckets(0.000001, 4, 13),
		StabilityLevel: metrics.ALPHA,
	}, []string{"by"})
	// Fallbacks counts pods that the index did not rank, by reason.
	Fallbacks = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "index_fallbacks_total",
		Help:           "Pods that were left to upstream's full scan, by reason",
		StabilityLevel: metrics.ALPHA,
	}, []string{"reason"})
	sizes = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "index_size",
		Help:           "Number of nodes, node states and pod classes in the index",
		StabilityLevel: metrics.ALPHA,
	}, []string{"of"})
	lookups = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "index_class_lookups_total",
		Help:           "Pods whose class existed (hit) or was made (miss)",
		StabilityLevel: metrics.ALPHA,
	}, []string{"result"})
	// Walked observes how many node groups were compared for a pod.
	Walked = metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "index_groups_walked",
		Help:           "Node groups that were compared to find the node for a pod",
		Buckets:        metrics.ExponentialBuckets(1, 4, 10),
		StabilityLevel: metrics.ALPHA,
	})
)

// RegisterMetrics registers the metrics of this package, once.
var RegisterMetrics = sync.OnceFunc(func() { legacyregistry.MustRegister(decisions, Fallbacks, sizes, lookups, Walked) })

// How the node for a pod was found.
const (
	rankedByIndex  = "index"
	rankedBySearch = "search"
)

func observe(by string, start time.Time) {
	decisions.WithLabelValues(by).Observe(time.Since(start).Seconds())
}
