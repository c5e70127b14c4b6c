package leader

import (
	"math/rand/v2"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// Without leader election, the clock decides who leads: terms are the times at which leaders started. So two
// replicas may claim the same term. Each of them then starts again with a later one, after a random time. The
// first that does so is followed by all others.

// maxContestWait is the longest of these times. It is longer than a message between replicas takes.
const maxContestWait = time.Second

// Contested returns whether an assignment of another process shows that no replica that follows it will follow
// this leader: it is for the term of this leader, or it is of an earlier process with the name of this replica.
func (l *Leader) Contested(a *wire.Assignment) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.term == 0:
		return false
	case a.Leader.Name == l.member.Self():
		return a.Term > l.term || a.Term == l.term && a.Number > l.number
	}
	return a.Term == l.term
}

// StartAgain makes this replica start again with a later term than the given one, which another process claims
// too, unless it has followed a later leader by then.
func (l *Leader) StartAgain(after int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if after <= l.contested {
		return
	}
	l.contested = after
	wait := rand.N(maxContestWait)
	l.logger.Info("Another process leads for the term of this replica; starting again with a later term", "term", after, "in", wait)
	time.AfterFunc(wait, func() { l.startAfter(after) })
}

// startAfter starts the term after the given one, unless this replica follows a later leader.
func (l *Leader) startAfter(term int64) {
	if a := l.member.Assignment(); l.ctx.Err() != nil || a != nil && a.Term > term {
		return
	}
	l.mu.Lock()
	l.begin(term + 1)
	l.mu.Unlock()
	l.wake()
}

// begin starts a term without an assignment. The caller holds the lock.
func (l *Leader) begin(term int64) {
	l.term, l.number, l.termStart = term, 0, time.Now()
	l.earlier, l.statuses = map[types.UID]earlierReservation{}, map[string]statusAt{}
	l.first.clear()
	l.settled = sets.New[types.UID]()
	l.ready.Clear()
	clear(l.nominated)
	clear(l.listing)
	l.currentTerm.Store(term)
}

// wake makes run check the assignment now.
func (l *Leader) wake() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}
