package cache

import (
	"sync"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	schedmetrics "k8s.io/kubernetes/pkg/scheduler/metrics"
)

var (
	steps = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "index_step_duration_seconds",
		Help:           "Duration of each step of a scheduling cycle: update (pending changes are applied), class (the pod's class is made or updated), choose (node groups are compared)",
		Buckets:        metrics.ExponentialBuckets(0.000001, 4, 13),
		StabilityLevel: metrics.ALPHA,
	}, []string{"step"})
)

// RegisterMetrics registers the metrics of this package at the first call.
var RegisterMetrics = sync.OnceFunc(func() { legacyregistry.MustRegister(steps) })

// The steps of a scheduling cycle.
const (
	stepUpdate = "update"
	// StepClass finds or makes the class of the pod and updates it.
	StepClass = "class"
	// StepChoose compares the node groups of the class.
	StepChoose = "choose"
)

// ObserveStep records the duration of a step since start. It is meant to be deferred.
func ObserveStep(step string, start time.Time) {
	steps.WithLabelValues(step).Observe(time.Since(start).Seconds())
}

// cacheSize is upstream's gauge of the pods and nodes in the cache; nil before [TakeCacheSize].
var cacheSize *metrics.GaugeVec

// TakeCacheSize makes this package set upstream's gauge of the cache size instead of upstream's cache, which
// stays empty and would set it to 0 every second. It must be called before upstream's cache is made.
var TakeCacheSize = sync.OnceFunc(func() {
	schedmetrics.Register()
	cacheSize = schedmetrics.CacheSize
	schedmetrics.CacheSize = metrics.NewGaugeVec(&metrics.GaugeOpts{Name: "unused"}, []string{"type"})
})

func reportCacheSize(assumed, pods, nodes int) {
	if cacheSize == nil {
		return
	}
	cacheSize.WithLabelValues("assumed_pods").Set(float64(assumed))
	cacheSize.WithLabelValues("pods").Set(float64(pods))
	cacheSize.WithLabelValues("nodes").Set(float64(nodes))
}
