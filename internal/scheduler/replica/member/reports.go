package member

import (
	"context"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/holder"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/pacing"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// report sends the status of this replica to the leader. If to is not "", it sends the status only if the
// replica of that name leads.
func (m *Member) report(to string) {
	// The holder is asked without the lock of the member: it asks the member for owners of nodes while it
	// holds its own lock.
	counts := m.holder.Counts()
	var term int64
	if a := m.Assignment(); a != nil {
		term = a.Term
	}
	earlier := m.holder.EarlierReservations(term)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.assignment == nil || to != "" && to != m.assignment.Leader.Name {
		return
	}
	status := &wire.Status{Nodes: counts.Nodes, Pods: counts.Pods, Expired: counts.Expired, AntiAffinityBeyondNode: counts.AntiAffinityBeyondNode, Listing: m.listing(), Config: m.options.Config}
	for _, member := range m.assignment.Members {
		if p := m.peers[member.Name]; p != nil && p.unreachable() {
			status.Unreachable = append(status.Unreachable, member.Name)
		}
	}
	// After a change of the term, the next report carries the reservations of earlier leaders. The leader accepts them only
	// on nodes that it knows to be of this replica, so these are announced first.
	leader := m.peers[m.assignment.Leader.Name]
	announced := len(earlier) == 0 || leader != nil && leader.sentNodes
	if m.complete() && m.assignment.Term == term && announced && !m.awaitsUnreachable() {
		status.Term, status.Number, status.Earlier = term, m.assignment.Number, earlier
	}
	m.send(m.assignment.Leader.Name, func(b *wire.Batch) { b.Status = status })
}

// listing returns 0 if all first lists of this replica are complete, otherwise a number that grows with their
// progress.
func (m *Member) listing() int64 {
	if m.nodes.synced.Load() && m.pods.synced.Load() {
		return 0
	}
	return 1 + m.nodes.progress.Load() + m.pods.progress.Load()
}

// Bounds and intervals of a member.
const (
	// maxEarlyRequests is the number of requests from replicas that are not peers yet. Further
	// requests are dropped.
	maxEarlyRequests = 10_000
	// unreachableAfter is the time without a connection after which a peer counts as unreachable.
	unreachableAfter = 1500 * time.Millisecond
	// reportInterval is the interval between status reports.
	reportInterval = 500 * time.Millisecond
	// expireInterval is the interval between checks for expired reservations. lookupTimeout is the
	// timeout of the request for the pod of an expired reservation.
	expireInterval, lookupTimeout = time.Second, 2 * time.Second
	// maxLookups is the number of these requests that are sent at a time.
	maxLookups = 16
)

// Run sends status reports, releases expired reservations and forgets deleted nodes until the context ends.
func (m *Member) Run(ctx context.Context) {
	go pacing.EachBeat(ctx, expireInterval, m.expireReservations)
	go pacing.EachBeat(ctx, forgetInterval, m.forgetNodes)
	pacing.EachBeat(ctx, reportInterval, func(context.Context) {
		m.report("")
		m.recordMetrics()
	})
}

// recordMetrics sets the metrics to the current numbers of objects.
func (m *Member) recordMetrics() {
	counts := m.holder.Counts()
	for kind, count := range map[string]int{"nodes": counts.Nodes, "pods": counts.Pods, "reservations": counts.Reservations, "nominations": counts.Nominations, "assumed": m.hooks.Assumed()} {
		objects.WithLabelValues(kind).Set(float64(count))
	}
}

// expireReservations releases reservations that no leader has renewed in time. After an error it keeps the
// reservation, and asks for the pod again at the next check.
func (m *Member) expireReservations(ctx context.Context) {
	overdue := m.holder.Overdue(time.Now())
	failed := make([]error, len(overdue))
	workqueue.ParallelizeUntil(ctx, maxLookups, len(overdue), func(i int) { failed[i] = m.expireReservation(ctx, overdue[i]) })
	failed = slices.DeleteFunc(failed, func(err error) bool { return err == nil })
	if len(failed) > 0 && ctx.Err() == nil {
		m.logger.Info("Looking up pods of expired reservations failed; keeping the reservations until the next check", "failed", len(failed), "of", len(overdue), "err", failed[0])
	}
}

// expireReservation releases the reservation of a pod. It first gets the pod from the API server: the pod may
// be bound although the replica that watches it could not report that, or the bind of an earlier leader may still
// arrive.
func (m *Member) expireReservation(ctx context.Context, pod *v1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	current, err := m.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("getting pod %v: %w", klog.KObj(pod), err)
	}
	state := holder.PodGone
	switch {
	case err != nil || current.UID != pod.UID:
	case current.Spec.NodeName == pod.Spec.NodeName:
		state = holder.PodBound
	case current.Spec.NodeName == "" && current.DeletionTimestamp == nil:
		state = holder.PodPending
	}
	m.holder.Expire(pod.UID, time.Now(), state)
	return nil
}
