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
	batchEnds = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "replica_batch_ends_total",
		Help:           "Batches of pods that were placed by one answer, by reason for their end: cluster_changed, pod_failed (the last pod was not assumed), other_class (the next pod is of another class), expired (the answer is too old), outdated (data that the class was built from changed) or exhausted (no offer is left)",
		StabilityLevel: metrics.ALPHA,
	}, []string{"reason"})
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
)

// RegisterMetrics registers the metrics of this package, once.
var RegisterMetrics = sync.OnceFunc(func() { legacyregistry.MustRegister(roundTimes, batchEnds, cutOff, assignments, replicaCount) })
