// Package storecluster tests the members of a replicated store, etcd or mem_etcd, as processes under faults. Clients write
// and read keys, lists, sets, leases and watches while members are killed, suspended, cut off and replaced, no more at a
// time than may fail. Afterwards package check judges what the clients saw.
//
// clients_test.go, lease_test.go and watch_test.go are the load, faults_test.go the faults, and rounds_test.go a run.
package storecluster

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/util/storemembers"
	"github.com/k8s-1m/k8s-1m/test/store-cluster/network"
)

// patience bounds what takes seconds on a machine without other work.
const patience = 3 * time.Minute

// The timings of the members are shorter than the defaults, so that more faults fit into a run.
const (
	heartbeat = 50 * time.Millisecond
	election  = 500 * time.Millisecond
)

// settings are those of a run, from environment variables.
type settings struct {
	store   string // STORE: etcd or mem_etcd
	log     string // REPLICATION_LOG: that of mem_etcd
	members int    // MEMBERS
	kills   int    // KILLS
	seed    uint64 // STORE_CLUSTER_SEED
}

func readSettings(t *testing.T) settings {
	t.Helper()
	s := settings{store: text("STORE", storemembers.MemEtcd), log: text("REPLICATION_LOG", storemembers.LogMemory)}
	s.members, s.kills = number(t, "MEMBERS", 3), number(t, "KILLS", 16)
	if s.store != storemembers.Etcd && s.store != storemembers.MemEtcd {
		t.Fatalf("STORE=%s: choose %s or %s", s.store, storemembers.Etcd, storemembers.MemEtcd)
	}
	if s.members < 3 || s.members%2 == 0 {
		t.Fatalf("MEMBERS=%d: choose 3, 5 or another odd number", s.members)
	}
	if value := os.Getenv("STORE_CLUSTER_SEED"); value != "" {
		seed, err := strconv.ParseUint(value, 10, 64)
		must(t, err)
		s.seed = seed
	} else {
		s.seed = rand.Uint64()
	}
	return s
}

// text returns the value of an environment variable, or fallback if it is not set.
func text(variable, fallback string) string {
	if value := os.Getenv(variable); value != "" {
		return value
	}
	return fallback
}

func number(t *testing.T, variable string, fallback int) int {
	t.Helper()
	n, err := strconv.Atoi(text(variable, strconv.Itoa(fallback)))
	must(t, err)
	return n
}

// start starts a cluster, in network namespaces if possible. It ends with the test, which shows the ends of the logs if it
// fails. disks are those of the members; without any, their data is in one temporary directory.
func start(t *testing.T, s settings, disks ...string) (*storemembers.Cluster, *network.Network) {
	t.Helper()
	o := storemembers.Options{
		Program: binary(t, s.store), Dir: t.TempDir(), Members: s.members, ReplicationLog: s.log, Heartbeat: heartbeat, Election: election, Disks: disks,
		Args: []string{"--watch-progress-notify-interval", "200ms"},
	}
	n, err := network.New(t, s.members)
	if err != nil {
		t.Logf("members are on loopback, without partitions: %v", err)
		n = nil
	} else {
		o.Sites, o.PeerTLS = n.Sites(), network.PeerTLS(t, n.Hosts())
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cluster, err := storemembers.Start(ctx, o)
	if err != nil {
		showLogs(t, o.Dir)
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cluster.Close()
		if t.Failed() {
			showLogs(t, o.Dir)
		}
	})
	return cluster, n
}

// showLogs logs the ends of the logs of all members.
func showLogs(t *testing.T, dir string) {
	const most = 4000
	logs, _ := filepath.Glob(filepath.Join(dir, "*.log"))
	for _, path := range logs {
		content, err := os.ReadFile(path)
		t.Logf("end of %s (error %v):\n%s", filepath.Base(path), err, content[max(0, len(content)-most):])
	}
}

// binary returns the path of a program in bin/, or in the directory K1M_BIN.
func binary(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(text("K1M_BIN", filepath.Join("..", "..", "bin")), name))
	must(t, err)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: run `make build` first", err)
	}
	return path
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
