package membership

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// Tenure is the time for which this replica may bind pods as the leader. Each renewal of the leader election
// Lease extends it to the renew deadline after the renewal. Another replica can acquire the Lease only after the
// lease duration, which is longer. So a leader that was suspended stops binding pods before its successor starts,
// whenever it resumes and whatever it believes until it reads the Lease. A nil Tenure does not end: there is no
// leader election.
type Tenure struct {
	life time.Duration
	// renewed is the time at which the last successful renewal was sent; nil before the first, and zero after
	// the Lease was released.
	renewed atomic.Pointer[time.Time]
}

var errNeverElected = errors.New("this replica has not acquired the leader election Lease")

// NewTenure returns a tenure of a replica that was not elected yet. life is the renew deadline.
func NewTenure(life time.Duration) *Tenure { return &Tenure{life: life} }

// Renewed reports that the Lease was acquired or renewed by a request that was sent at the given time.
func (t *Tenure) Renewed(sent time.Time) { t.renewed.Store(&sent) }

// End ends the tenure, because this replica releases the Lease.
func (t *Tenure) End() { t.renewed.Store(&time.Time{}) }

// Check returns nil during the tenure, otherwise the reason why this replica must not bind pods.
func (t *Tenure) Check() error {
	if t != nil && t.renewed.Load() == nil {
		return errNeverElected
	}
	return t.CheckEnded()
}

// CheckEnded returns an error if the tenure has ended, and nil during the tenure and before it.
func (t *Tenure) CheckEnded() error {
	if t == nil {
		return nil
	}
	renewed := t.renewed.Load()
	if renewed == nil {
		return nil
	}
	if age := elapsed(*renewed, time.Now()); age >= t.life {
		return fmt.Errorf("this replica renewed the leader election Lease %v ago, so another replica may lead", age.Round(time.Millisecond))
	}
	return nil
}

// elapsed returns the time between two instants by the clock that shows more: the monotonic clock stands still
// while the machine is suspended, and the wall clock can be set back.
func elapsed(from, to time.Time) time.Duration {
	return max(to.Sub(from), to.Round(0).Sub(from.Round(0)))
}
