package holder

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
)

// TestPanicRefusesOneReservation has the check of a reservation panic, because the profile is incomplete. The next
// reservation is granted.
func TestPanicRefusesOneReservation(t *testing.T) {
	h := newTestHolder(t)
	complete := h.ranker.Profiles[v1.DefaultSchedulerName]
	h.ranker.Profiles[v1.DefaultSchedulerName] = &rank.Profile{}
	if refused := h.reserve(t, podOnNode("first", "1"), true, false); !strings.Contains(refused, "panic while scheduling") {
		t.Errorf("Reserve() = %q, want a panic as the reason", refused)
	}
	h.ranker.Profiles[v1.DefaultSchedulerName] = complete
	if refused := h.reserve(t, podOnNode("second", "1"), true, false); refused != "" {
		t.Errorf("Reserve() = %q, want a reservation", refused)
	}
}
