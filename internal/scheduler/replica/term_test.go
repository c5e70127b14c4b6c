package replica

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
)

// TestTermIsReadUntilTheTenureEnds has reads of the Lease fail after this replica was elected.
func TestTermIsReadUntilTheTenureEnds(t *testing.T) {
	unreachable := errors.New("unreachable")
	for _, test := range []struct {
		name     string
		failures int
		err      error
		reads    int
	}{
		{"slow API server", 2, unreachable, 3},
		{"not elected", 2, membership.ErrNotElected, 1},
	} {
		tenure, reads := membership.NewTenure(time.Minute), 0
		tenure.Renewed(time.Now())
		term, err := readTerm(t.Context(), tenure, func(context.Context) (int64, error) {
			if reads++; reads <= test.failures {
				return 0, test.err
			}
			return 7, nil
		})
		if reads != test.reads || (err == nil) != (term == 7) || err != nil && !errors.Is(err, test.err) {
			t.Errorf("%s: readTerm() = %d, %v after %d reads, want %d reads", test.name, term, err, reads, test.reads)
		}
	}
	tenure := membership.NewTenure(300 * time.Millisecond)
	tenure.Renewed(time.Now())
	if _, err := readTerm(t.Context(), tenure, func(context.Context) (int64, error) { return 0, unreachable }); !errors.Is(err, unreachable) {
		t.Errorf("readTerm() after the tenure = %v, want %v", err, unreachable)
	}
}
