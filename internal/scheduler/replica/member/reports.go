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

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/core"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/holder"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/pacing"
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
	m.do(func(c *core.Member, now time.Time) core.MemberOutput { return c.Report(now, to, counts, earlier, term) })
}

// Intervals of a member.
const (
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
