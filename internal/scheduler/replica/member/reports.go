package member

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// report tells the leader how far this replica is; with a name only if that leads.
func (m *Member) report(to string) {
	have := m.holder.Counts()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.assignment == nil || to != "" && to != m.assignment.Leader.Name {
		return
	}
	status := &wire.Status{Nodes: have.Nodes, Pods: have.Pods, Freed: have.Freed, Forbids: have.Forbids, Config: m.options.Config}
	for _, member := range m.assignment.Members {
		if p := m.peers[member.Name]; p != nil && p.cutOff() {
			status.Cut = append(status.Cut, member.Name)
		}
	}
	if m.complete() {
		status.Term, status.Number = m.assignment.Term, m.assignment.Number
	}
	m.send(m.assignment.Leader.Name, func(b *wire.Batch) { b.Status = status })
}

const (
	// Replicas that may ask for something before it is known here that there are such.
	maxEarlyRequests = 10_000
	// A replica that could not be sent anything for so long is cut off.
	unreachableAfter = 1500 * time.Millisecond
	// How often a replica says that it lives.
	reportInterval = 500 * time.Millisecond
	// How often it looks for places that nobody asks to keep, and how long it waits for
	// what the API server says of one.
	expireInterval, lookupTimeout = time.Second, 2 * time.Second
)

// run takes part until the context ends.
func (m *Member) Run(ctx context.Context) {
	go wire.EachBeat(ctx, expireInterval, m.expireReservations)
	wire.EachBeat(ctx, reportInterval, func(context.Context) {
		m.report("")
		m.recordMetrics()
	})
}

// record tells the metrics how much there is.
func (m *Member) recordMetrics() {
	have := m.holder.Counts()
	for of, count := range map[string]int{"nodes": have.Nodes, "pods": have.Pods, "reservations": have.Reservations, "assumed": m.hooks.Assumed()} {
		holding.WithLabelValues(of).Set(float64(count))
	}
}

// expire gives places to others that no leader asks to keep. The API server is asked
// about each: who should have told that the pod is bound may be cut off.
func (m *Member) expireReservations(ctx context.Context) {
	for _, pod := range m.holder.Overdue(time.Now()) {
		asking, cancel := context.WithTimeout(ctx, lookupTimeout)
		now, err := m.client.CoreV1().Pods(pod.Namespace).Get(asking, pod.Name, metav1.GetOptions{})
		cancel()
		if err != nil && !apierrors.IsNotFound(err) {
			m.logger.Info("Whether a place is still of use is not known", "pod", klog.KObj(pod), "err", err)
			return
		}
		bound := err == nil && now.UID == pod.UID && now.Spec.NodeName == pod.Spec.NodeName
		m.holder.Expire(pod.UID, time.Now(), bound)
	}
}
