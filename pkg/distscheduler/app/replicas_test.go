package app

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
)

// TestNamesOfPeers: each replica has a name of its own, and is where the others look for it.
func TestNamesOfPeers(t *testing.T) {
	self := membership.Member{Name: "a", Address: "10.0.0.1:7000"}
	for peers, want := range map[string]string{
		"a=10.0.0.1:7000,b=10.0.0.2:7000":                 "",
		"a=10.0.0.1:7000,b=10.0.0.2:7000,b=10.0.0.3:7000": "--replica-peers has b twice",
		"a=10.0.0.2:7000,b=10.0.0.3:7000":                 `has a at "10.0.0.2:7000", but this replica is at "10.0.0.1:7000"`,
		"b=10.0.0.3:7000":                                 `has a at ""`,
		"a=10.0.0.1:7000,b=10.0.0.2:7000/relay":           "",
		"a=10.0.0.1:7000/relay,b=10.0.0.2:7000":           "--replica-relay-only of this replica says otherwise",
		"a":                                               "should have NAME=ADDRESS:PORT",
	} {
		o := &replicaOptions{peers: strings.Split(peers, ",")}
		members, err := o.addresses(self)
		switch {
		case want == "" && (err != nil || len(members) != 2):
			t.Errorf("%s: %v, %v", peers, members, err)
		case want == "" && members[1].Relay != strings.HasSuffix(peers, "/relay"):
			t.Errorf("%s: %v", peers, members)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v", peers, err)
		}
	}
}

// lock counts what is asked of a lease.
type lock struct {
	resourcelock.Interface
	asked int
}

func (l *lock) Identity() string { return "self" }

func (l *lock) Create(context.Context, resourcelock.LeaderElectionRecord) error {
	l.asked++
	return nil
}

func (l *lock) Update(context.Context, resourcelock.LeaderElectionRecord) error {
	l.asked++
	return nil
}

// TestCandidateThatMayNotLead does not take the lease, and gives it back.
func TestCandidateThatMayNotLead(t *testing.T) {
	lease, refusal := &lock{}, errors.New("alone")
	c := candidate{lease, func(context.Context) error { return refusal }}
	own := resourcelock.LeaderElectionRecord{HolderIdentity: "self"}
	if c.Create(t.Context(), own) != refusal || c.Update(t.Context(), own) != refusal || lease.asked != 0 {
		t.Errorf("it takes the lease, %d times", lease.asked)
	}
	if err := c.Update(t.Context(), resourcelock.LeaderElectionRecord{}); err != nil || lease.asked != 1 {
		t.Errorf("it does not release the lease: %v", err)
	}
	refusal = nil
	if c.Create(t.Context(), own) != nil || c.Update(t.Context(), own) != nil || lease.asked != 3 {
		t.Errorf("it does not take the lease when it may")
	}
}

// TestAddressThatNamesNobody: an address of all interfaces is the same on each machine, and
// so would be the name that follows from it.
func TestAddressThatNamesNobody(t *testing.T) {
	for bind, wrong := range map[string]bool{"0.0.0.0:7000": true, "[::]:7000": true, ":7000": true, "10.0.0.1:7000": false, "host:7000": false} {
		o := &replicaOptions{bind: bind, fanout: 1, quorum: 90, deadline: time.Second}
		if err := o.validate(); (err != nil) != wrong {
			t.Errorf("%s: %v", bind, err)
		}
		if o.advertise = "10.0.0.1:7000"; o.validate() != nil {
			t.Errorf("%s, reached at %s: %v", bind, o.advertise, o.validate())
		}
	}
}
