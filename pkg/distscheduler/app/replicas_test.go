package app

import (
	"strings"
	"testing"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/shard"
)

// TestNamesOfPeers: each replica has a name of its own, and is where the others look for it.
func TestNamesOfPeers(t *testing.T) {
	self := shard.Member{Name: "a", Address: "10.0.0.1:7000"}
	for peers, want := range map[string]string{
		"a=10.0.0.1:7000,b=10.0.0.2:7000":                 "",
		"a=10.0.0.1:7000,b=10.0.0.2:7000,b=10.0.0.3:7000": "--replica-peers has b twice",
		"a=10.0.0.2:7000,b=10.0.0.3:7000":                 `has a at "10.0.0.2:7000", but this replica is at "10.0.0.1:7000"`,
		"b=10.0.0.3:7000":                                 `has a at ""`,
		"a":                                               "should have NAME=ADDRESS:PORT",
	} {
		o := &replicaOptions{peers: strings.Split(peers, ",")}
		members, err := o.addresses(self)
		switch {
		case want == "" && (err != nil || len(members) != 2):
			t.Errorf("%s: %v, %v", peers, members, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v", peers, err)
		}
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
