package membership

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestTenureEndsBeforeTheLease checks that a replica may bind pods only until the renew deadline after its last
// renewal, and not after it has released the Lease.
func TestTenureEndsBeforeTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const renewDeadline = 7 * time.Second
		tenure := NewTenure(renewDeadline)
		check := func(when string, may, ended bool) {
			t.Helper()
			if err := tenure.Check(); (err == nil) != may {
				t.Errorf("%s: Check() = %v, want nil: %t", when, err, may)
			}
			if err := tenure.CheckEnded(); (err != nil) != ended {
				t.Errorf("%s: CheckEnded() = %v, want an error: %t", when, err, ended)
			}
		}
		check("before the election", false, false)
		tenure.Renewed(time.Now())
		check("after the election", true, false)
		time.Sleep(renewDeadline - time.Nanosecond)
		check("just before the renew deadline", true, false)
		time.Sleep(time.Nanosecond)
		check("at the renew deadline", false, true)
		// The answer to this renewal arrived late.
		tenure.Renewed(time.Now().Add(-2 * time.Second))
		time.Sleep(renewDeadline - 2*time.Second)
		check("at the renew deadline after a slow renewal", false, true)
		tenure.Renewed(time.Now())
		tenure.End()
		check("after the release of the Lease", false, true)
	})
	if err := (*Tenure)(nil).Check(); err != nil {
		t.Errorf("Check() without leader election = %v, want nil", err)
	}
}

// TestElapsedByEitherClock checks that time counts that only one of the clocks shows.
func TestElapsedByEitherClock(t *testing.T) {
	now := time.Now()
	for name, from := range map[string]time.Time{"monotonic": now.Add(-time.Minute), "wall": now.Round(0).Add(-time.Minute)} {
		if got := elapsed(from, now); got != time.Minute {
			t.Errorf("elapsed() by the %s clock = %v, want 1m", name, got)
		}
	}
}
