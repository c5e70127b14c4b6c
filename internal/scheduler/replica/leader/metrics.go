package leader

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	schedmetrics "k8s.io/kubernetes/pkg/scheduler/metrics"
)

var (
	roundTimes = metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "replica_round_duration_seconds",
		Help:           "Time from a question to the replicas that own nodes to what they answered together",
		Buckets:        metrics.ExponentialBuckets(0.0001, 2, 16),
		StabilityLevel: metrics.ALPHA,
	})
	runEnds = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "replica_run_ends_total",
		Help:           "Answers that no more pods are placed by: something has happened (disturbed), a pod that was placed is not there (failed), another class is next (other), it is old, what it is made of is outdated, or all of it is used up",
		StabilityLevel: metrics.ALPHA,
	}, []string{"why"})
	cutOff = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "replica_cut_off_total",
		Help:           "Questions that a replica did not answer in time",
		StabilityLevel: metrics.ALPHA,
	}, []string{"replica"})
	assignments = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "replica_assignments_total",
		Help:           "How often this replica, as the leader, has said anew who owns which slots",
		StabilityLevel: metrics.ALPHA,
	})
	membership = metrics.NewGauge(&metrics.GaugeOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "replica_members",
		Help:           "Replicas that live, as this one sees it while it leads",
		StabilityLevel: metrics.ALPHA,
	})
	registerReplica sync.Once
)

// RegisterMetrics registers the metrics of this package, once.
func RegisterMetrics() {
	registerReplica.Do(func() { legacyregistry.MustRegister(roundTimes, runEnds, cutOff, assignments, membership) })
}
