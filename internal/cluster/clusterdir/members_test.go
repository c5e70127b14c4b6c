package clusterdir

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

func TestMembersAreComponents(t *testing.T) {
	s := overlay(t, DefaultSettings(), "--store", "etcd", "--store-replicas", "3", "--store-faults")
	s.Complete()
	if err := s.Validate(); err != nil {
		t.Fatalf("Validate() = %v", err)
	}
	if !slices.Equal(s.StoreNames(), []string{"store"}) || !slices.Equal(s.StoreComponents(), []string{"store-1", "store-2", "store-3"}) {
		t.Errorf("the stores are %q with the members %q", s.StoreNames(), s.StoreComponents())
	}
	ports := s.PortNames()
	for _, name := range []string{"store-1", "store-2-metrics", "store-3-peer", "store-3-peer-listen"} {
		if !slices.Contains(ports, name) {
			t.Errorf("the ports are %q, want %s", ports, name)
		}
	}
	if slices.Contains(ports, "store") {
		t.Errorf("the ports are %q, and no member is called store", ports)
	}
	if text := s.DescribeStore(); text != "etcd, 3 members" {
		t.Errorf("DescribeStore() = %q", text)
	}
	one := DefaultSettings()
	one.Complete()
	if !slices.Equal(one.StoreComponents(), []string{"store"}) || one.ForwardsPeers() {
		t.Errorf("the members of a single store are %q", one.StoreComponents())
	}
}

// TestModesFollowTheNumberOfMembers checks that the mode of a mem_etcd with one member does not apply to several, and the
// other way round.
func TestModesFollowTheNumberOfMembers(t *testing.T) {
	one := overlay(t, DefaultSettings(), "--wal-mode", "none")
	one.Complete()
	three := overlay(t, one, "--store-replicas", "3")
	three.Complete()
	if err := three.Validate(); err != nil || three.WALMode != "" || three.ReplicationLog != LogBuffered || !three.KeepsData() {
		t.Errorf("with three members the settings are %+v (error %v), want the log %s and no WAL mode", three, err, LogBuffered)
	}
	diskless := overlay(t, three, "--replication-log", "memory")
	diskless.Complete()
	if err := diskless.Validate(); err != nil || diskless.KeepsData() || diskless.DescribeStore() != "mem_etcd, 3 members, replication-log memory" {
		t.Errorf("with the log in memory the store is %q (error %v), and it keeps data: %t", diskless.DescribeStore(), err, diskless.KeepsData())
	}
	back := overlay(t, diskless, "--store-replicas", "1")
	back.Complete()
	if err := back.Validate(); err != nil || back.WALMode != WALBuffered || back.ReplicationLog != "" {
		t.Errorf("with one member again the settings are %+v (error %v)", back, err)
	}
}

func TestInvalidMembersAreUsageErrors(t *testing.T) {
	for _, c := range []struct{ flags, want string }{
		{"--store-replicas 0", "choose 1, 3, 5 or 7"},
		{"--store-replicas 2", "an even number of members"},
		{"--store-replicas 9", "choose 1, 3, 5 or 7"},
		{"--store-replicas 3 --store-address http://127.0.0.1:1", "does not run the store of --store-address"},
		{"--store-replicas 3 --replication-log disk", "choose fsync, buffered or memory"},
		{"--replication-log memory", "add --store-replicas 3, or use --wal-mode"},
		{"--store etcd --store-replicas 3 --replication-log memory", "etcd always uses fsync"},
		{"--store-replicas 3 --wal-mode buffered", "use --replication-log"},
		{"--store-replicas 3 --replication-log memory --data-dir /d", "omit one of them"},
		{"--store-replicas 3 --trace", "etcd-proxy (--trace) connects to one member only"},
		{"--store-replicas 3 --store-for pods=own", "own stores (--store-for) have one member"},
		{"--store-replicas 3 --store-arg snapshot-dir=/s", "omit --store-arg snapshot-dir=/s"},
		{"--store-faults", "add --store-replicas 3"},
	} {
		s := overlay(t, DefaultSettings(), strings.Fields(c.flags)...)
		s.Complete()
		if err := s.Validate(); !errors.Is(err, usage.Err) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Validate() with %s = %v, want a usage error with %q", c.flags, err, c.want)
		}
	}
}

// TestDataOfOtherMembersIsRejected checks that a store keeps its number of members.
func TestDataOfOtherMembersIsRejected(t *testing.T) {
	one := Settings{Store: StoreEtcd, StoreReplicas: 1}
	three := Settings{Store: StoreEtcd, StoreReplicas: 3}
	for _, c := range []struct {
		first, second Settings
		want          string
	}{
		{one, three, "with 1 members, and the settings have 3"},
		{three, one, "with 3 members, and the settings have 1"},
	} {
		data := filepath.Join(t.TempDir(), "data")
		for range 2 {
			if err := PrepareData(data, c.first); err != nil {
				t.Fatal(err)
			}
		}
		if err := PrepareData(data, c.second); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("PrepareData() with another number of members = %v, want %q", err, c.want)
		}
	}
}
