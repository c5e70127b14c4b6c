package leader

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	schedmetrics "k8s.io/kubernetes/pkg/scheduler/metrics"
)

var (
	queryTimes = metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "replica_query_duration_seconds",
		Help:           "Time from sending a query to the replicas that own nodes until their answers are merged",
		Buckets:        metrics.ExponentialBuckets(0.0001, 2, 16),
		StabilityLevel: metrics.ALPHA,
	})
	batchEnds = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "replica_batch_ends_total",
		Help:           "Number of batches (consecutive pods that were placed with one answer), by the reason for which they ended: cluster_changed, pod_failed (the last pod was not assumed), other_class (the next pod is of another class), nominations (the next pod must leave room for other nominated pods), expired (the answer is older than 1 s), outdated (data from which the class was built has changed) or exhausted (no offer is left)",
		StabilityLevel: metrics.ALPHA,
	}, []string{"reason"})
	lateAnswers = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "replica_late_answers_total",
		Help:           "Number of queries that a replica did not answer in time, by replica",
		StabilityLevel: metrics.ALPHA,
	}, []string{"replica"})
	assignments = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "replica_assignments_total",
		Help:           "Number of assignments of hash slots that this replica made as the leader",
		StabilityLevel: metrics.ALPHA,
	})
	replicaCount = metrics.NewGauge(&metrics.GaugeOpts{
		Subsystem: schedmetrics.SchedulerSubsystem, Name: "replica_members",
		Help:           "Number of live replicas in the last assignment that this replica made as the leader",
		StabilityLevel: metrics.ALPHA,
	})
)

// RegisterMetrics registers the metrics of this package at the first call.
var RegisterMetrics = sync.OnceFunc(func() { legacyregistry.MustRegister(queryTimes, batchEnds, lateAnswers, assignments, replicaCount) })
