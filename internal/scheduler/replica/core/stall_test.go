package core

import (
	"testing"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// stallLeader is a leader, "self", with two other owners, at a time.
type stallLeader struct {
	*Leader
	now time.Time
}

func newStallLeader() *stallLeader {
	l := &stallLeader{NewLeader(LeaderConfig{Self: membership.Member{Name: "self"}}), time.Unix(1_000_000, 0)}
	l.Begin(1, l.now, nil)
	l.number, l.table = 1, membership.Assign(nil, []string{"self", "slow", "stalled"})
	return l
}

// report processes status reports for some time. Each replica reports the number that a function returns for the time
// since the start.
func (l *stallLeader) report(duration time.Duration, listing map[string]func(time.Duration) int64) {
	for start := l.now; l.now.Sub(start) < duration; l.now = l.now.Add(time.Second) {
		for name, number := range listing {
			l.Status(l.now, name, &wire.Status{Listing: number(l.now.Sub(start))}, noView{})
		}
		l.excludeStalled(l.now, &Output{})
	}
}

// alive returns whether a replica may own hash slots now.
func (l *stallLeader) alive(name string) bool { return l.isAlive(name, l.now, noView{}) }

// TestOwnerWhoseListsStallLosesItsSlots has an owner report no progress of its lists. Only this owner is excluded,
// until it connects again, or for stallExclusion.
func TestOwnerWhoseListsStallLosesItsSlots(t *testing.T) {
	complete := func(time.Duration) int64 { return 0 }
	stalled := func(time.Duration) int64 { return 7 }
	slow := func(since time.Duration) int64 { return 1 + int64(since/(defaultStallTimeout-10*time.Second)) }
	for name, test := range map[string]struct {
		listing  map[string]func(time.Duration) int64
		excluded bool
	}{
		"the others have complete lists or progress": {map[string]func(time.Duration) int64{"self": complete, "slow": slow, "stalled": stalled}, true},
		"no owner has complete lists":                {map[string]func(time.Duration) int64{"self": slow, "slow": slow, "stalled": stalled}, false},
		"the leader itself":                          {map[string]func(time.Duration) int64{"self": stalled, "slow": complete, "stalled": complete}, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := newStallLeader()
			l.report(defaultStallTimeout-5*time.Second, test.listing)
			if !l.alive("stalled") {
				t.Errorf("%s: the owner is excluded before the timeout", name)
			}
			l.report(5*defaultStallTimeout, test.listing)
			if got := !l.alive("stalled"); got != test.excluded || !l.alive("slow") || !l.alive("self") {
				t.Errorf("%s: excluded is %t, want %t; the others are alive: %t, %t", name, got, test.excluded, l.alive("slow"), l.alive("self"))
			}
			if !test.excluded {
				return
			}
			l.forgetStall("stalled")
			if !l.alive("stalled") {
				t.Errorf("%s: the owner is excluded after it has connected again", name)
			}
			l.report(2*defaultStallTimeout, test.listing)
			if l.alive("stalled") {
				t.Errorf("%s: the owner is not excluded again", name)
			}
			test.listing["stalled"] = complete
			l.report(stallExclusion, test.listing)
			if !l.alive("stalled") {
				t.Errorf("%s: the owner is excluded for ever", name)
			}
		})
	}
}
