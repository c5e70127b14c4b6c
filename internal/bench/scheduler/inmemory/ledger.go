package inmemory

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
)

// ledger counts pods by their state.
type ledger struct {
	mu      sync.Mutex
	changed *sync.Cond

	submitted, bound int
	// failing contains the pods whose last scheduling attempt failed.
	failing sets.Set[types.UID]
	// errors are failures of the scheduler itself, such as a panic.
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

func (l *ledger) submit() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.submitted++
}

func (l *ledger) confirmed(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bound++
	l.failing.Delete(uid)
	l.changed.Broadcast()
}

func (l *ledger) failed(uid types.UID, status *fwk.Status) {
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

func (l *ledger) done() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bound + l.failing.Len()
}
