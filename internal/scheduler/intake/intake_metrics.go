package intake

import (
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
	schedmetrics "k8s.io/kubernetes/pkg/scheduler/metrics"
)

// Why a pod was not taken in but left to the watch.
const (
	dropOverload = "overload"
	// dropForeign: another scheduler has to place the pod.
	dropForeign = "foreign"
	// dropExists: the watch was first, or another pod has that name.
	dropExists     = "exists"
	dropNamespace  = "namespace"
	dropNotLeading = "not_leading"
)

const (
	sourceWebhook = "webhook"
	sourceWatch   = "watch"

	byWatch = "watch"
	byGet   = "get"

	expiredAbsent  = "absent"
	expiredTimeout = "timeout"
)

var (
	taken = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "intake_pods_total",
		Help:           "Pods taken into the scheduling queue, by the source that delivered them first: webhook or watch",
		StabilityLevel: metrics.ALPHA,
	}, []string{"source"})
	seenAfter = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "intake_seen_duration_seconds",
		Help:           "Time from the creation of a pod until it was taken in, by source; creation timestamps are whole seconds, so a single value is up to a second too long",
		Buckets:        metrics.ExponentialBuckets(0.125, 2, 12),
		StabilityLevel: metrics.ALPHA,
	}, []string{"source"})
	leadTime = metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "intake_lead_seconds",
		Help:           "Time by which the webhook delivered a pod before the watch",
		Buckets:        metrics.ExponentialBuckets(0.0005, 2, 18),
		StabilityLevel: metrics.ALPHA,
	})
	dropped = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "intake_dropped_pods_total",
		Help:           "Pods that the webhook delivered and that were left to the watch, by reason",
		StabilityLevel: metrics.ALPHA,
	}, []string{"reason"})
	confirmations = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "intake_confirmations_total",
		Help:           "Pods from the webhook that were confirmed as stored, by source: watch or get",
		StabilityLevel: metrics.ALPHA,
	}, []string{"by"})
	expired = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "intake_expired_pods_total",
		Help:           "Pods from the webhook that were discarded as never stored: absent (the API server does not have the pod) or timeout",
		StabilityLevel: metrics.ALPHA,
	}, []string{"reason"})
	returned = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "intake_returned_pods_total",
		Help:           "Pods from the webhook whose first scheduling attempt failed before the watch showed them; they are tried again then",
		StabilityLevel: metrics.ALPHA,
	})
	earlyPods = metrics.NewGauge(&metrics.GaugeOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "intake_unconfirmed_pods",
		Help:           "Pods from the webhook that the watch has not shown yet",
		StabilityLevel: metrics.ALPHA,
	})
)

var registerMetrics = sync.OnceFunc(func() {
	legacyregistry.MustRegister(taken, seenAfter, leadTime, dropped, confirmations, expired, returned, earlyPods)
})

// Drop counts a pod that was not taken in, by a reason of one word.
func Drop(reason string) { dropped.WithLabelValues(reason).Inc() }

// SeenMessage is the message that `--vmodule=intake_metrics=4` logs for each pod that is taken in,
// with the time. Benchmarks parse it.
const SeenMessage = "Pod taken in"

// observe counts a pod that is taken in. Pods created before the scheduler started are not timed.
func (in *Intake) observe(pod *v1.Pod, source string, now time.Time) {
	taken.WithLabelValues(source).Inc()
	if created := pod.CreationTimestamp.Time; created.After(in.started) {
		seenAfter.WithLabelValues(source).Observe(now.Sub(created).Seconds())
	}
	klog.V(4).InfoS(SeenMessage, "pod", klog.KObj(pod), "source", source, "unixMicros", now.UnixMicro())
}
