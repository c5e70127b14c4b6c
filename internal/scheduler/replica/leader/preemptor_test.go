package leader

import (
	"strings"
	"testing"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// TestPanicOfPreemptionIsErrorOfOnePod has the search for victims panic, because the search has no owners.
func TestPanicOfPreemptionIsErrorOfOnePod(t *testing.T) {
	f := schedtest.NewScripted(t, schedtest.NewAPI())
	p := &Preemptor{search: &Search{Ranker: f.Ranker}}
	_, status := p.PostFilter(f.Ctx, nil, schedtest.PlainPod("pod", "1"), nil)
	if !strings.Contains(status.Message(), "panic while scheduling") {
		t.Errorf("PostFilter() = %v, want a panic as the error", status)
	}
}
