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

// Reasons for which a pod from the webhook is left to the watch.
const (
	// dropOverload: there are too many early pods, or they are too large.
	dropOverload = "overload"
	// dropShare: there are too many early pods of the pod's namespace, or they are too large.
	dropShare = "namespace_share"
	// dropForeign: this scheduler does not schedule the pod.
	dropForeign = "foreign"
	// dropExists: the watch has already shown the pod, or another pod has its name.
	dropExists = "exists"
	// dropNamespace: the webhook recently delivered a pod of this namespace that was then not stored. The
	// intake therefore ignores pods of this namespace from the webhook for some time.
	dropNamespace = "namespace"
	// dropNotLeading: this scheduler does not lead.
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
		Help:           "Number of pods that were added to the scheduling queue, by the source that delivered them first: webhook or watch",
		StabilityLevel: metrics.ALPHA,
	}, []string{"source"})
	queuedAfter = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "intake_queued_duration_seconds",
		Help:           "Time from the creation of a pod until it was added to the scheduling queue, by source; creation timestamps are whole seconds, so a single value is up to a second too long",
		Buckets:        metrics.ExponentialBuckets(0.125, 2, 12),
		StabilityLevel: metrics.ALPHA,
	}, []string{"source"})
	leadTime = metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "intake_lead_seconds",
		Help:           "Time from the delivery of a pod by the webhook until the watch showed it",
		Buckets:        metrics.ExponentialBuckets(0.0005, 2, 18),
		StabilityLevel: metrics.ALPHA,
	})
	dropped = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "intake_dropped_pods_total",
		Help:           "Number of pods that the webhook delivered and that were left to the watch, by reason",
		StabilityLevel: metrics.ALPHA,
	}, []string{"reason"})
	confirmations = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "intake_confirmations_total",
		Help:           "Number of pods from the webhook that were confirmed as stored; label by: watch, or get (a request to the API server)",
		StabilityLevel: metrics.ALPHA,
	}, []string{"by"})
	expired = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "intake_expired_pods_total",
		Help:           "Number of pods from the webhook that were discarded because they were not stored, by reason: absent (the API server does not have the pod) or timeout (the pod was not confirmed within 10 s)",
		StabilityLevel: metrics.ALPHA,
	}, []string{"reason"})
	returned = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "intake_returned_pods_total",
		Help:           "Number of pods from the webhook whose scheduling failed before the watch showed them; they are retried when the watch shows them",
		StabilityLevel: metrics.ALPHA,
	})
	earlyPods = metrics.NewGauge(&metrics.GaugeOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "intake_early_pods",
		Help:           "Number of pods from the webhook that the intake tracks, because the watch has not shown them",
		StabilityLevel: metrics.ALPHA,
	})
)

var registerMetrics = sync.OnceFunc(func() {
	legacyregistry.MustRegister(taken, queuedAfter, leadTime, dropped, confirmations, expired, returned, earlyPods)
})

// CountDropped counts a pod that is left to the watch. reason is a label value of the metric.
func CountDropped(reason string) { dropped.WithLabelValues(reason).Inc() }

// QueuedMessage is the message that is logged with `--vmodule=intake_metrics=4` for each pod that is added to
// the scheduling queue. Benchmarks parse it.
const QueuedMessage = "Pod added to the scheduling queue"

// recordTaken updates the metrics for a pod that is added to the queue. It does not measure the time for
// pods that were created before the scheduler was started.
func (in *Intake) recordTaken(pod *v1.Pod, source string, now time.Time) {
	taken.WithLabelValues(source).Inc()
	if created := pod.CreationTimestamp.Time; created.After(in.started) {
		queuedAfter.WithLabelValues(source).Observe(now.Sub(created).Seconds())
	}
	klog.V(4).InfoS(QueuedMessage, "pod", klog.KObj(pod), "source", source, "unixMicros", now.UnixMicro())
}
