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
	steps = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: upstream.SchedulerSubsystem, Name: "index_step_duration_seconds",
		Help:           "Time in each step of a scheduling cycle: update (what has happened is carried out), class (that of the pod is made, or catches up), choose (its groups are compared)",
		Buckets:        metrics.ExponentialBuckets(0.000001, 4, 13),
		StabilityLevel: metrics.ALPHA,
	}, []string{"step"})
	lookups = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: upstream.SchedulerSubsystem, Name: "index_class_lookups_total",
		Help:           "Pods whose class was there (hit) or had to be made (miss)",
		StabilityLevel: metrics.ALPHA,
	}, []string{"result"})
	walked = metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem: upstream.SchedulerSubsystem, Name: "index_groups_walked",
		Help:           "Groups of nodes that were compared to find the node for a pod",
		Buckets:        metrics.ExponentialBuckets(1, 4, 10),
		StabilityLevel: metrics.ALPHA,
	})
	pluginFailures = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: upstream.SchedulerSubsystem, Name: "plugin_failures_total",
		Help:           "Calls of plugins that are not kube-scheduler's own that ended in a panic or took too long, by plugin, extension point and kind",
		StabilityLevel: metrics.ALPHA,
	}, []string{"plugin", "extension_point", "kind"})
	roundTimes = metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem: upstream.SchedulerSubsystem, Name: "replica_round_duration_seconds",
		Help:           "Time from a question to the replicas that own nodes to what they answered together",
		Buckets:        metrics.ExponentialBuckets(0.0001, 2, 16),
		StabilityLevel: metrics.ALPHA,
	})
	runEnds = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: upstream.SchedulerSubsystem, Name: "replica_run_ends_total",
		Help:           "Answers that no more pods are placed by: something has happened (disturbed), a pod that was placed is not there (failed), another class is next (other), it is old, what it is made of is outdated, or all of it is used up",
		StabilityLevel: metrics.ALPHA,
	}, []string{"why"})
	cutOff = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: upstream.SchedulerSubsystem, Name: "replica_cut_off_total",
		Help:           "Questions that a replica did not answer in time",
		StabilityLevel: metrics.ALPHA,
	}, []string{"replica"})
	assignments = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem: upstream.SchedulerSubsystem, Name: "replica_assignments_total",
		Help:           "How often this replica, as the leader, has said anew who owns which slots",
		StabilityLevel: metrics.ALPHA,
	})
	membership = metrics.NewGauge(&metrics.GaugeOpts{
		Subsystem: upstream.SchedulerSubsystem, Name: "replica_members",
		Help:           "Replicas that live, as this one sees it while it leads",
		StabilityLevel: metrics.ALPHA,
	})
	holding = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Subsystem: upstream.SchedulerSubsystem, Name: "replica_holds",
		Help:           "What this replica has: nodes that it owns, pods on them, reservations for pods that are to come; and pods that it assumes to be on nodes, as the leader",
		StabilityLevel: metrics.ALPHA,
	}, []string{"of"})
	register sync.Once
)

// Steps of a scheduling cycle.
const (
	stepUpdate = "update"
	stepClass  = "class"
	stepChoose = "choose"
)

func registerMetrics() {
	register.Do(func() {
		legacyregistry.MustRegister(decisions, fallbacks, sizes, steps, lookups, walked, pluginFailures, roundTimes, runEnds, cutOff, assignments, membership, holding)
	})
}

func observe(by string, start time.Time) {
	decisions.WithLabelValues(by).Observe(time.Since(start).Seconds())
}

// timed is to be deferred: the step takes from start until then.
func timed(step string, start time.Time) {
	steps.WithLabelValues(step).Observe(time.Since(start).Seconds())
}

// cacheSize is upstream's gauge of the pods and nodes in the cache, once it is ours.
var cacheSize *metrics.GaugeVec

// takeCacheSize takes the gauge from upstream's cache, which stays empty and says so
// each second; it must come before that is made.
var takeCacheSize = sync.OnceFunc(func() {
	upstream.Register()
	cacheSize = upstream.CacheSize
	upstream.CacheSize = metrics.NewGaugeVec(&metrics.GaugeOpts{Name: "unused"}, []string{"type"})
})

func reportCacheSize(assumed, pods, nodes int) {
	if cacheSize == nil {
		return
	}
	cacheSize.WithLabelValues("assumed_pods").Set(float64(assumed))
	cacheSize.WithLabelValues("pods").Set(float64(pods))
	cacheSize.WithLabelValues("nodes").Set(float64(nodes))
}
