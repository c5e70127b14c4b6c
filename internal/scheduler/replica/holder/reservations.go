package holder

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/core"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// Reserve reserves capacity for a pod, or releases it, or changes the nomination of a pod (see [core.Ledger.Reserve]).
func (h *Holder) Reserve(ctx context.Context, from string, term int64, ready bool, r *wire.Reservation) (refused string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ctx = ctx
	defer h.reservationArrived.Broadcast()
	return h.ledger.Reserve(time.Now(), from, term, ready, r)
}

// SkipReservation counts a reservation of a replica that does not lead (see [core.Ledger.SkipReservation]).
func (h *Holder) SkipReservation(from string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ledger.SkipReservation(from)
	h.reservationArrived.Broadcast()
}

// ForgetNominated removes all nominations, because a new leader sends its own.
func (h *Holder) ForgetNominated() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ledger.ForgetNominated()
}

// Renew renews reservations. It returns an answer for each: a refusal if the reservation has expired.
func (h *Holder) Renew(renewals []wire.Renewal) []wire.Ack {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ledger.Renew(time.Now(), renewals)
}

// Overdue returns the pods of the reservations that were not renewed in time.
func (h *Holder) Overdue(now time.Time) []*v1.Pod {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ledger.Overdue(now)
}

// PodState is what the API server says about the pod of a reservation.
type PodState = core.PodState

// The states of a pod.
const (
	PodGone    = core.PodGone
	PodPending = core.PodPending
	PodBound   = core.PodBound
)

// Expire releases the reservation of a pod if it was not renewed in time (see [core.Ledger.Expire]).
func (h *Holder) Expire(uid types.UID, now time.Time, state PodState) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ledger.Expire(uid, now, state)
}

// ShortenOld makes the reservations of earlier terms overdue soon (see [core.Ledger.ShortenOld]).
func (h *Holder) ShortenOld(term int64, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ledger.ShortenOld(term, now)
}

// EarlierReservations returns the reservations that a leader of an earlier term than the given one
// requested, for pods that are not known to be bound. The leader does not know these reservations.
func (h *Holder) EarlierReservations(term int64) []wire.EarlierReservation {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ledger.EarlierReservations(term)
}
