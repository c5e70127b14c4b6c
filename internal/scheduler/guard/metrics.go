package guard

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	schedmetrics "k8s.io/kubernetes/pkg/scheduler/metrics"
)

var (
	pluginFailures = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "plugin_failures_total",
		Help:           "Number of calls of out-of-tree plugins that panicked or timed out, by plugin, extension point and kind of failure",
		StabilityLevel: metrics.ALPHA,
	}, []string{"plugin", "extension_point", "kind"})
)

// RegisterMetrics registers the metrics of this package at the first call.
var RegisterMetrics = sync.OnceFunc(func() { legacyregistry.MustRegister(pluginFailures) })
