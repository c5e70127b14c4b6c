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
		Help:           "Time from a query to the replicas that own nodes to their merged answer",
		Buckets:        metrics.ExponentialBuckets(0.0001, 2, 16),
		StabilityLevel: metrics.ALPHA,
	})
	runEnds = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "replica_run_ends_total",
		Help:           "Batches of pods that were placed by one answer, by why they ended: the cluster changed (disturbed), the last pod was not assumed (failed), the next pod is of another class (other), the answer was old, outdated or used up",
		StabilityLevel: metrics.ALPHA,
	}, []string{"why"})
	cutOff = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "replica_cut_off_total",
		Help:           "Queries that a replica did not answer in time",
		StabilityLevel: metrics.ALPHA,
	}, []string{"replica"})
	assignments = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "replica_assignments_total",
		Help:           "Assignments of hash slots that this replica made as the leader",
		StabilityLevel: metrics.ALPHA,
	})
	replicaCount = metrics.NewGauge(&metrics.GaugeOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "replica_members",
		Help:           "Live replicas, as seen by this replica while it leads",
		StabilityLevel: metrics.ALPHA,
	})
	registerReplica sync.Once
)

// RegisterMetrics registers the metrics of this package, once.
func RegisterMetrics() {
	registerReplica.Do(func() { legacyregistry.MustRegister(roundTimes, runEnds, cutOff, assignments, replicaCount) })
}
