package app

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
)

// TestReplicaPeersAreValidated checks that names in --replica-peers are unique and that the entry
// of this replica matches its other flags.
func TestReplicaPeersAreValidated(t *testing.T) {
	self := membership.Member{Name: "a", Address: "10.0.0.1:7000"}
	for peers, want := range map[string]string{
		"a=10.0.0.1:7000,b=10.0.0.2:7000":                 "",
		"a=10.0.0.1:7000,b=10.0.0.2:7000,b=10.0.0.3:7000": "--replica-peers: duplicate name b",
		"a=10.0.0.2:7000,b=10.0.0.3:7000":                 `a has address "10.0.0.2:7000", but this replica has "10.0.0.1:7000"`,
		"b=10.0.0.3:7000":                                 `a has address ""`,
		"a=10.0.0.1:7000,b=10.0.0.2:7000/relay":           "",
		"a=10.0.0.1:7000/relay,b=10.0.0.2:7000":           "does not match --replica-relay-only of this replica",
		"a":                                               "must be NAME=ADDRESS:PORT",
	} {
		o := &replicaOptions{peers: strings.Split(peers, ",")}
		members, err := o.addresses(self)
		switch {
		case want == "" && (err != nil || len(members) != 2):
			t.Errorf("addresses() of %s = %v, %v, want 2 members", peers, members, err)
		case want == "" && members[1].Relay != strings.HasSuffix(peers, "/relay"):
			t.Errorf("addresses() of %s = %v, want a relay if the entry ends with /relay", peers, members)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("addresses() of %s = error %v, want %q", peers, err, want)
		}
	}
}

// countingLock counts the writes of a Lease.
type countingLock struct {
	resourcelock.Interface
	writes int
	// transitions is the number of transitions that was last written.
	transitions int
}

func (l *countingLock) Identity() string { return "self" }

func (l *countingLock) Create(_ context.Context, record resourcelock.LeaderElectionRecord) error {
	l.writes++
	l.transitions = record.LeaderTransitions
	return nil
}

func (l *countingLock) Update(_ context.Context, record resourcelock.LeaderElectionRecord) error {
	l.writes++
	l.transitions = record.LeaderTransitions
	return nil
}

// TestCandidateThatMayNotLeadDoesNotAcquireLease checks that a candidate that may not lead cannot
// acquire the Lease but can release it.
func TestCandidateThatMayNotLeadDoesNotAcquireLease(t *testing.T) {
	lease, refusal := &countingLock{}, errors.New("alone")
	c := candidate{lease, func(context.Context) error { return refusal }, func() int64 { return 0 }, membership.NewTenure(time.Minute)}
	acquired := resourcelock.LeaderElectionRecord{HolderIdentity: "self"}
	if c.Create(t.Context(), acquired) != refusal || c.Update(t.Context(), acquired) != refusal || lease.writes != 0 {
		t.Errorf("a candidate that may not lead acquired the Lease with %d writes, want error %v and 0 writes", lease.writes, refusal)
	}
	released := resourcelock.LeaderElectionRecord{}
	if err := c.Update(t.Context(), released); err != nil || lease.writes != 1 {
		t.Errorf("releasing the Lease = %v with %d writes, want nil and 1 write", err, lease.writes)
	}
	refusal = nil
	if c.Create(t.Context(), acquired) != nil || c.Update(t.Context(), acquired) != nil || lease.writes != 3 {
		t.Errorf("a candidate that may lead did not acquire the Lease: %d writes, want 3", lease.writes)
	}
}

// TestTransitionsDoNotDecrease checks that a candidate that knows a term counts from there if the Lease
// was deleted or replaced, and that each write of the leader keeps the number.
func TestTransitionsDoNotDecrease(t *testing.T) {
	lease, known := &countingLock{}, int64(7)
	c := candidate{lease, func(context.Context) error { return nil }, func() int64 { return known }, membership.NewTenure(time.Minute)}
	created, renewed, released := resourcelock.LeaderElectionRecord{HolderIdentity: "self"}, resourcelock.LeaderElectionRecord{HolderIdentity: "self"}, resourcelock.LeaderElectionRecord{}
	for _, write := range []func() error{
		func() error { return c.Create(t.Context(), created) },
		func() error { return c.Update(t.Context(), renewed) },
		func() error { return c.Update(t.Context(), released) },
	} {
		if err := write(); err != nil || lease.transitions != 7 {
			t.Errorf("writing the Lease = %v with %d transitions, want 7", err, lease.transitions)
		}
	}
	if err := c.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "self", LeaderTransitions: 9}); err != nil || lease.transitions != 9 {
		t.Errorf("writing a Lease with 9 transitions = %v with %d transitions, want 9", err, lease.transitions)
	}
}

// TestTenureFollowsTheLease checks that each successful write of the Lease extends the time for which this replica
// may bind pods, that a failed one does not, and that the release of the Lease ends it.
func TestTenureFollowsTheLease(t *testing.T) {
	refusal, acquired := error(nil), resourcelock.LeaderElectionRecord{HolderIdentity: "self"}
	c := candidate{&countingLock{}, func(context.Context) error { return refusal }, func() int64 { return 0 }, membership.NewTenure(time.Minute)}
	for _, write := range []func(context.Context, resourcelock.LeaderElectionRecord) error{c.Create, c.Update} {
		c.tenure.End()
		refusal = errors.New("alone")
		if err := write(t.Context(), acquired); err == nil || c.tenure.Check() == nil {
			t.Errorf("a failed write of the Lease = %v, and then Check() = %v, want two errors", err, c.tenure.Check())
		}
		refusal = nil
		if err := write(t.Context(), acquired); err != nil || c.tenure.Check() != nil {
			t.Errorf("a write of the Lease = %v, and then Check() = %v, want nil", err, c.tenure.Check())
		}
	}
	if err := c.Update(t.Context(), resourcelock.LeaderElectionRecord{}); err != nil || c.tenure.Check() == nil {
		t.Errorf("the release of the Lease = %v, and then Check() = %v, want nil and an error", err, c.tenure.Check())
	}
}

// TestLeaseHasTheNameOfTheReplica checks that the other replicas can read from the Lease which replica
// was elected.
func TestLeaseHasTheNameOfTheReplica(t *testing.T) {
	lock := &resourcelock.LeaseLock{LockConfig: resourcelock.ResourceLockConfig{Identity: "host_1"}}
	if err := nameCandidate(lock, "replica-1"); err != nil {
		t.Fatal(err)
	}
	first := lock.Identity()
	if err := nameCandidate(lock, "replica-1"); err != nil || lock.Identity() == first || !strings.HasPrefix(first, "replica-1_") {
		t.Errorf("identities of two processes = %q and %q (error %v), want different ones that begin with replica-1_", first, lock.Identity(), err)
	}
	if err := nameCandidate(&countingLock{}, "replica-1"); err == nil {
		t.Error("nameCandidate() of a lock that is not a Lease = nil, want an error")
	}
}

// TestDeadlineThatReplicasRefuse checks that a deadline that other replicas would refuse is an error at startup.
func TestDeadlineThatReplicasRefuse(t *testing.T) {
	for deadline, valid := range map[time.Duration]bool{0: false, time.Minute: true, time.Minute + 1: false} {
		o := &replicaOptions{bind: "127.0.0.1:7000", fanout: 1, quorum: 90, deadline: deadline}
		if err := o.validate(); (err == nil) != valid {
			t.Errorf("validate() with deadline %v = %v, want valid: %v", deadline, err, valid)
		}
	}
}

// TestUnspecifiedBindAddressRequiresAdvertisedAddress checks that only a bind address that others
// can connect to is sufficient.
func TestUnspecifiedBindAddressRequiresAdvertisedAddress(t *testing.T) {
	for bind, unspecified := range map[string]bool{"0.0.0.0:7000": true, "[::]:7000": true, ":7000": true, "10.0.0.1:7000": false, "host:7000": false} {
		o := &replicaOptions{bind: bind, fanout: 1, quorum: 90, deadline: time.Second}
		if err := o.validate(); (err != nil) != unspecified {
			t.Errorf("validate() with bind address %s = %v, want an error: %v", bind, err, unspecified)
		}
		if o.advertise = "10.0.0.1:7000"; o.validate() != nil {
			t.Errorf("validate() with bind address %s, advertised %s = %v, want nil", bind, o.advertise, o.validate())
		}
	}
}

// TestProcessThatStartsAgainHasAnotherTerm starts to lead twice within a second, without leader election.
func TestProcessThatStartsAgainHasAnotherTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(300 * time.Millisecond)
		first, err := startTerm(t.Context())
		second, errAgain := startTerm(t.Context())
		if err != nil || errAgain != nil || first != time.Now().Unix()-1 || second != time.Now().Unix() {
			t.Errorf("startTerm() = %d, %v, then %d, %v at %v, want two terms that are the current time", first, err, second, errAgain, time.Now())
		}
	})
}
