package wire

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var (
	linkResets = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: "scheduler", Name: "replica_link_resets_total",
		Help:           "Number of connections to another replica that ended or could not be opened, by replica; after each, this replica sends its whole state to the other one again",
		StabilityLevel: metrics.ALPHA,
	}, []string{"replica"})
	refusedBatches = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem: "scheduler", Name: "replica_refused_batches_total",
		Help:           "Number of batches of changes that this replica refused, because they were malformed or could not be processed; after each, it ends the connection, and the sender sends its whole state again",
		StabilityLevel: metrics.ALPHA,
	})
	rejectedConnections = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem: "scheduler", Name: "replica_rejected_connections_total",
		Help:           "Number of connections between replicas that failed because of a certificate: it is of another CA, expired, or not for the replica that was expected",
		StabilityLevel: metrics.ALPHA,
	})
)

// RegisterMetrics registers the metrics of this package at the first call.
var RegisterMetrics = sync.OnceFunc(func() { legacyregistry.MustRegister(linkResets, refusedBatches, rejectedConnections) })
