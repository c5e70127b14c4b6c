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
		Help:           "Time to find the node for a pod, by method: index, or search (upstream's full scan)",
		Buckets:        metrics.ExponentialBuckets(0.000001, 4, 13),
		StabilityLevel: metrics.ALPHA,
	}, []string{"by"})
	// Fallbacks counts the pods that the index did not rank, by reason.
	Fallbacks = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "index_fallbacks_total",
		Help:           "Number of pods that the index did not rank, by reason: upstream's full scan, or with replicas the evaluation of each node, found their node",
		StabilityLevel: metrics.ALPHA,
	}, []string{"reason"})
	sizes = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "index_size",
		Help:           "Number of objects in the index, by kind: nodes, states (node states) and classes (pod classes)",
		StabilityLevel: metrics.ALPHA,
	}, []string{"kind"})
	lookups = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "index_class_lookups_total",
		Help:           "Number of class lookups, by result: hit if the pod's class existed, miss if it was made",
		StabilityLevel: metrics.ALPHA,
	}, []string{"result"})
	// Walked observes the number of node groups that were compared for a pod.
	Walked = metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "index_groups_walked",
		Help:           "Number of node groups that were compared to find the node for a pod",
		Buckets:        metrics.ExponentialBuckets(1, 4, 10),
		StabilityLevel: metrics.ALPHA,
	})
	asked = metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "index_nodes_asked",
		Help:           "Number of nodes on which filter plugins outside the index ran to schedule one pod",
		Buckets:        metrics.ExponentialBuckets(1, 4, 10),
		StabilityLevel: metrics.ALPHA,
	})
)

// RegisterMetrics registers the metrics of this package at the first call.
var RegisterMetrics = sync.OnceFunc(func() { legacyregistry.MustRegister(decisions, Fallbacks, sizes, lookups, Walked, asked) })

// Values of the label "by": the method that found the node for a pod.
const (
	rankedByIndex  = "index"
	rankedBySearch = "search"
)

func observe(by string, start time.Time) {
	decisions.WithLabelValues(by).Observe(time.Since(start).Seconds())
}
