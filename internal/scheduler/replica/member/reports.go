package member

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/pacing"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// report sends the status of this replica to the leader. If to is not "", it does so only if that
// replica leads.
func (m *Member) report(to string) {
	have := m.holder.Counts()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.assignment == nil || to != "" && to != m.assignment.Leader.Name {
		return
	}
	status := &wire.Status{Nodes: have.Nodes, Pods: have.Pods, Expired: have.Expired, AntiAffinityBeyondNode: have.AntiAffinityBeyondNode, Config: m.options.Config}
	for _, member := range m.assignment.Members {
		if p := m.peers[member.Name]; p != nil && p.cutOff() {
			status.Unreachable = append(status.Unreachable, member.Name)
		}
	}
	if m.complete() {
		status.Term, status.Number = m.assignment.Term, m.assignment.Number
	}
	m.send(m.assignment.Leader.Name, func(b *wire.Batch) { b.Status = status })
}

// Bounds and intervals of a member.
const (
	// Requests that are kept of replicas that are not known here yet.
	maxEarlyRequests = 10_000
	// A replica that could not be sent anything for so long is cut off.
	unreachableAfter = 1500 * time.Millisecond
	// The interval of status reports.
	reportInterval = 500 * time.Millisecond
	// The interval of checks for expired reservations, and the time for the API server to return a
	// pod.
	expireInterval, lookupTimeout = time.Second, 2 * time.Second
)

// Run sends reports and expires reservations until the context ends.
func (m *Member) Run(ctx context.Context) {
	go pacing.EachBeat(ctx, expireInterval, m.expireReservations)
	pacing.EachBeat(ctx, reportInterval, func(context.Context) {
		m.report("")
		m.recordMetrics()
	})
}

// recordMetrics sets the metrics of what this replica has.
func (m *Member) recordMetrics() {
	have := m.holder.Counts()
	for of, count := range map[string]int{"nodes": have.Nodes, "pods": have.Pods, "reservations": have.Reservations, "assumed": m.hooks.Assumed()} {
		holding.WithLabelValues(of).Set(float64(count))
	}
}

// expireReservations releases reservations that no leader renews. It asks the API server about each
// pod, because the replica that should have sent the bound pod may be cut off.
func (m *Member) expireReservations(ctx context.Context) {
	for _, pod := range m.holder.Overdue(time.Now()) {
		asking, cancel := context.WithTimeout(ctx, lookupTimeout)
		now, err := m.client.CoreV1().Pods(pod.Namespace).Get(asking, pod.Name, metav1.GetOptions{})
		cancel()
		if err != nil && !apierrors.IsNotFound(err) {
			m.logger.Info("Looking up the pod of an expired reservation failed", "pod", klog.KObj(pod), "err", err)
			return
		}
		bound := err == nil && now.UID == pod.UID && now.Spec.NodeName == pod.Spec.NodeName
		m.holder.Expire(pod.UID, time.Now(), bound)
	}
}
