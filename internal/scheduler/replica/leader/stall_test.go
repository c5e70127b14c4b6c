package leader

import (
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/member"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// newStallLeader returns a leader, "self", with two other owners.
func newStallLeader(t *testing.T) *Leader {
	options := member.Options{Self: membership.Member{Name: "self"}}
	client := fake.NewClientset()
	return &Leader{
		options: options, member: member.New(t.Context(), options, nil, client, client, nil, member.Hooks{}), term: 1, number: 1, termStart: time.Now(),
		table: membership.Assign(nil, []string{"self", "slow", "stalled"}), statuses: map[string]statusAt{}, ready: sets.New[string](),
		earlier: map[types.UID]earlierReservation{}, excludedUntil: map[string]time.Time{}, stalledUntil: map[string]time.Time{}, listing: map[string]listProgress{},
		changed: make(chan struct{}, 1), search: &Search{},
	}
}

// report processes status reports for some time. Each replica reports the number that a function returns for the time
// since the start.
func (l *Leader) report(duration time.Duration, listing map[string]func(time.Duration) int64) {
	for start := time.Now(); time.Since(start) < duration; time.Sleep(time.Second) {
		for name, number := range listing {
			l.HandleStatus(name, &wire.Status{Listing: number(time.Since(start))})
		}
		l.mu.Lock()
		l.excludeStalled()
		l.mu.Unlock()
	}
}

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
		synctest.Test(t, func(t *testing.T) {
			l := newStallLeader(t)
			l.report(defaultStallTimeout-5*time.Second, test.listing)
			if !l.isAlive("stalled") {
				t.Errorf("%s: the owner is excluded before the timeout", name)
			}
			l.report(5*defaultStallTimeout, test.listing)
			if got := !l.isAlive("stalled"); got != test.excluded || !l.isAlive("slow") || !l.isAlive("self") {
				t.Errorf("%s: excluded is %t, want %t; the others are alive: %t, %t", name, got, test.excluded, l.isAlive("slow"), l.isAlive("self"))
			}
			if !test.excluded {
				return
			}
			l.forgetStall("stalled")
			if !l.isAlive("stalled") {
				t.Errorf("%s: the owner is excluded after it has connected again", name)
			}
			l.report(2*defaultStallTimeout, test.listing)
			if l.isAlive("stalled") {
				t.Errorf("%s: the owner is not excluded again", name)
			}
			test.listing["stalled"] = complete
			l.report(stallExclusion, test.listing)
			if !l.isAlive("stalled") {
				t.Errorf("%s: the owner is excluded for ever", name)
			}
		})
	}
}
