package core

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// TestUnreachableReplicaIsExcluded has owners that are not ready in time, because replicas cannot reach each other. The
// replica that fails gets no hash slots, whatever the order of the members is.
func TestUnreachableReplicaIsExcluded(t *testing.T) {
	recent, old := time.Now(), time.Now().Add(-recentReport-time.Second)
	report := func(at time.Time, unreachable ...string) statusAt {
		return statusAt{}.next(&wire.Status{Unreachable: unreachable}, at)
	}
	for name, test := range map[string]struct {
		statuses map[string]statusAt
		// want are the replicas of which one is excluded; none if it is empty.
		want sets.Set[string]
	}{
		"b has not reported in this term":                   {map[string]statusAt{"a": report(recent, "b")}, sets.New("b")},
		"b is in more pairs":                                {map[string]statusAt{"a": report(recent, "b"), "b": report(recent), "c": report(recent, "b")}, sets.New("b")},
		"b was suspended after a report":                    {map[string]statusAt{"a": report(recent, "b"), "b": report(old)}, nil},
		"both run":                                          {map[string]statusAt{"a": report(recent, "b"), "b": report(recent, "a")}, sets.New("a", "b")},
		"all reach each other, b has not reported":          {map[string]statusAt{"a": report(recent), "c": report(recent)}, nil},
		"b has not reported, the replica in most pairs has": {map[string]statusAt{"a": report(recent, "b", "c"), "c": report(recent, "a")}, sets.New("b")},
	} {
		for _, order := range [][]string{{"leader", "a", "b", "c"}, {"c", "b", "a", "leader"}} {
			l := &Leader{
				config:   LeaderConfig{Self: membership.Member{Name: "leader"}},
				statuses: test.statuses, table: membership.Assign(nil, order), ready: sets.New[string](),
				excludedUntil: map[string]time.Time{}, assignedAt: time.Now().Add(-assignmentTimeout),
			}
			for _, member := range order {
				l.members = append(l.members, membership.Member{Name: member})
			}
			l.excludeUnreachable(time.Now(), noView{}, &Output{})
			excluded := sets.KeySet(l.excludedUntil)
			if len(excluded) != min(1, len(test.want)) || !test.want.IsSuperset(excluded) {
				t.Errorf("%s, members %v: excluded %v, want one of %v", name, order, sets.List(excluded), sets.List(test.want))
			}
		}
	}
}

// TestLastingPartition has owners that are all ready, and one that has not reached another one for some time.
func TestLastingPartition(t *testing.T) {
	for _, test := range []struct {
		first    time.Duration // age of the first report of three
		reported bool          // whether the second one says so, too
		relay    bool          // whether the other one is a relay
		excluded bool
	}{
		{partitionTimeout + time.Second, true, false, true},
		{partitionTimeout - time.Second, true, false, false},
		{partitionTimeout + time.Second, false, false, false},
		{partitionTimeout + time.Second, true, true, false},
	} {
		now := time.Now()
		l := &Leader{
			config: LeaderConfig{Self: membership.Member{Name: "leader"}},
			table:  membership.Assign(nil, []string{"leader", "a", "b"}), ready: sets.New("leader", "a", "b"), excludedUntil: map[string]time.Time{},
			members: []membership.Member{{Name: "leader"}, {Name: "b", Relay: test.relay}, {Name: "a"}}, assignedAt: now.Add(-time.Hour),
		}
		if test.relay {
			l.table = membership.Assign(nil, []string{"leader", "a"})
		}
		cut, whole := &wire.Status{Unreachable: []string{"b"}}, &wire.Status{}
		between := cut
		if !test.reported {
			between = whole
		}
		a := statusAt{}.next(cut, now.Add(-test.first)).next(between, now.Add(-test.first/2)).next(cut, now)
		l.statuses = map[string]statusAt{"leader": statusAt{}.next(whole, now), "a": a, "b": statusAt{}.next(whole, now)}
		l.excludeUnreachable(now, noView{}, &Output{})
		if _, got := l.excludedUntil["a"]; got != test.excluded || len(l.excludedUntil) > 1 {
			t.Errorf("%+v: excluded %v, want that a is: %t", test, l.excludedUntil, test.excluded)
		}
	}
}

// TestExclusionIsExtended has an exclusion end soon while the replica still does not reach an owner, or a relay, or has not
// reported for some time.
func TestExclusionIsExtended(t *testing.T) {
	now := time.Now()
	for name, test := range map[string]struct {
		left     time.Duration
		other    string
		reported time.Time
		extended bool
	}{
		"it does not reach an owner":               {recentReport / 2, "b", now, true},
		"it does not reach a replica that is none": {recentReport / 2, "relay", now, false},
		"the exclusion lasts longer":               {exclusionTime / 2, "b", now, false},
		"the exclusion has ended":                  {-time.Second, "b", now, false},
		"the report is old":                        {recentReport / 2, "b", now.Add(-2 * recentReport), false},
	} {
		l := &Leader{
			table: membership.Assign(nil, []string{"leader", "b"}), excludedUntil: map[string]time.Time{"a": now.Add(test.left)},
			statuses: map[string]statusAt{"a": statusAt{}.next(&wire.Status{Unreachable: []string{test.other}}, test.reported)},
		}
		l.extendExclusions(now)
		if got := l.excludedUntil["a"].Equal(now.Add(exclusionTime)); got != test.extended {
			t.Errorf("%s: the exclusion is extended: %t, want %t", name, got, test.extended)
		}
	}
}

// TestReplicaThatLeaderDoesNotReachIsExcluded has two replicas report that they do not reach each other.
func TestReplicaThatLeaderDoesNotReachIsExcluded(t *testing.T) {
	now := time.Now()
	for name, test := range map[string]struct {
		lastReport map[string]time.Time
		want       string
	}{
		"both run":                        {map[string]time.Time{"a": now, "b": now}, "b"},
		"b was suspended":                 {map[string]time.Time{"a": now, "b": now.Add(-2 * recentReport)}, "b"},
		"a has not reported in this term": {map[string]time.Time{"b": now}, "a"},
	} {
		lastReport := func(name string) time.Time { return test.lastReport[name] }
		unreachable := func(name string) bool { return name == "b" }
		for _, order := range [][]string{{"a", "b"}, {"b", "a"}} {
			if got := worstReplica(order, map[string]int{"a": 2, "b": 2}, lastReport, unreachable, now); got != test.want {
				t.Errorf("%s, order %v: excluded %q, want %q", name, order, got, test.want)
			}
		}
	}
}

// noView is the view of a leader that reaches all replicas and knows no nodes.
type noView struct{}

func (noView) Assignment() *wire.Assignment { return nil }

func (noView) NodeOwner(string) string { return "" }

func (noView) Unreachable(string) bool { return false }
