package inmemory

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
)

// ledger counts pods by their scheduling state.
type ledger struct {
	mu      sync.Mutex
	changed *sync.Cond

	submitted, bound int
	// failing are the pods that are not bound and whose last scheduling attempt failed.
	failing sets.Set[types.UID]
	// errors is the number of attempts that failed because of an error, not because no node fits.
	errors     int
	firstError error
}

func newLedger() *ledger {
	l := &ledger{failing: sets.New[types.UID]()}
	l.changed = sync.NewCond(&l.mu)
	return l
}

// awaitRoom waits until fewer than limit pods wait for their first decision.
func (l *ledger) awaitRoom(ctx context.Context, limit int) {
	wake := context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.changed.Broadcast()
	})
	defer wake()
	l.mu.Lock()
	defer l.mu.Unlock()
	for ctx.Err() == nil && l.submitted-l.bound-l.failing.Len() >= limit {
		l.changed.Wait()
	}
}

// addSubmitted counts a pod that is delivered to the scheduler.
func (l *ledger) addSubmitted() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.submitted++
}

// addBound counts a bound pod.
func (l *ledger) addBound(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bound++
	l.failing.Delete(uid)
	l.changed.Broadcast()
}

// addFailed records a failed scheduling attempt.
func (l *ledger) addFailed(uid types.UID, status *fwk.Status) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failing.Insert(uid)
	if !status.IsRejected() {
		l.errors++
		if l.firstError == nil {
			l.firstError = status.AsError()
		}
	}
	l.changed.Broadcast()
}

// decidedPods returns the number of pods that are bound or whose last attempt failed.
func (l *ledger) decidedPods() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bound + l.failing.Len()
}
