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

// TestPeers checks that names in --replica-peers are unique and that the entry of this
// replica matches its flags.
func TestPeers(t *testing.T) {
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
			t.Errorf("%s: %v, %v", peers, members, err)
		case want == "" && members[1].Relay != strings.HasSuffix(peers, "/relay"):
			t.Errorf("%s: %v", peers, members)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v", peers, err)
		}
	}
}

// lock counts the writes of a lease.
type lock struct {
	resourcelock.Interface
	writes int
}

func (l *lock) Identity() string { return "self" }

func (l *lock) Create(context.Context, resourcelock.LeaderElectionRecord) error {
	l.writes++
	return nil
}

func (l *lock) Update(context.Context, resourcelock.LeaderElectionRecord) error {
	l.writes++
	return nil
}

// TestCandidateThatMayNotLead checks that a candidate that may not lead cannot acquire the
// lease but can release it.
func TestCandidateThatMayNotLead(t *testing.T) {
	lease, refusal := &lock{}, errors.New("alone")
	c := candidate{lease, func(context.Context) error { return refusal }}
	own := resourcelock.LeaderElectionRecord{HolderIdentity: "self"}
	if c.Create(t.Context(), own) != refusal || c.Update(t.Context(), own) != refusal || lease.writes != 0 {
		t.Errorf("it wrote the lease %d times", lease.writes)
	}
	if err := c.Update(t.Context(), resourcelock.LeaderElectionRecord{}); err != nil || lease.writes != 1 {
		t.Errorf("it did not release the lease: %v", err)
	}
	refusal = nil
	if c.Create(t.Context(), own) != nil || c.Update(t.Context(), own) != nil || lease.writes != 3 {
		t.Errorf("it did not acquire the lease although it may lead")
	}
}

// TestUnspecifiedAddress checks that an unspecified bind address requires an advertised
// address.
func TestUnspecifiedAddress(t *testing.T) {
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
