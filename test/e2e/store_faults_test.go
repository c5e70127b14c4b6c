package e2e

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// storeFaultPods come and go while members of the store are killed.
	storeFaultPods  = 1000
	storeFaultNodes = 100
	// longFaultInterval is the time between two kills in a run of `make store-faults`, shortFaultInterval in a short one.
	longFaultInterval, shortFaultInterval = 30 * time.Second, 8 * time.Second
	shortFaults                           = 3
)

// TestStoreFaults kills the leader of a mem_etcd of three members without disks again and again while pods come and go. In
// the end all pods run, all nodes are ready, and all members have the same content. The run goes on until the API server has
// compared its caches with the store, which takes 5 to 7.5 minutes, only if the number of kills is given:
//
//	STORE_FAULTS  number of kills, one every 30 s; 0: three, one every 8 s, without the comparison. Without it, the test is
//	              skipped: even the short run takes two minutes.
func TestStoreFaults(t *testing.T) {
	value := os.Getenv("STORE_FAULTS")
	if value == "" {
		t.Skip("only if STORE_FAULTS is set: make store-faults")
	}
	faults, err := strconv.Atoi(value)
	must(t, err)
	interval, isLong := longFaultInterval, faults > 0
	if !isLong {
		faults, interval = shortFaults, shortFaultInterval
	}
	w := newWorkspace(t)
	t.Cleanup(func() { w.k1m(t, "down", "--name", "members") })
	t.Log(w.succeed(t, "up", "--name", "members", "--store", "mem_etcd", "--store-replicas", "3", "--replication-log", "memory",
		"--nodes", fmt.Sprint(storeFaultNodes), "--apiserver-env", "KUBE_WATCHCACHE_CONSISTENCY_CHECKER=true").stdout)

	pods := startPodChurn(t, w)
	kills := 0
	for ; kills < faults || isLong && !cachesWereChecked(t, w); kills++ {
		awaitVoters(t, w)
		time.Sleep(interval)
		killLeader(t, w)
	}
	rounds := pods.stop(t)
	t.Logf("%d kills of the leader in %d rounds of %d pods", kills, rounds, storeFaultPods)
	awaitVoters(t, w)
	w.succeed(t, "pods", "create", "--name", "members", "--count", fmt.Sprint(storeFaultPods))
	membersAreWell(t, w, kills)
}

// killLeader kills the member that leads, and waits until the supervisor has started it again.
func killLeader(t *testing.T, w *workspace) {
	t.Helper()
	awaitLeader(t, w, func(name string) bool { return name != "" })
	leader := w.status(t, "members").StoreLeader
	before := w.status(t, "members").component(t, leader)
	w.succeed(t, "store", "kill", leader, "--name", "members")
	w.awaitRestart(t, "members", before)
}

// awaitVoters waits until all members vote. A member without a disk counts as failed until it votes again.
func awaitVoters(t *testing.T, w *workspace) {
	t.Helper()
	for _, name := range []string{"store-1", "store-2", "store-3"} {
		client := clientOfStore(t, w, "members", name)
		eventually(t, patience, name+" votes", func() error {
			status, err := client.Status(t.Context(), client.Endpoints()[0])
			if err == nil && (status.IsLearner || status.Leader == 0) {
				err = fmt.Errorf("its status is %+v", status)
			}
			return err
		})
		must(t, client.Close())
	}
}

// membersAreWell checks the cluster after the faults.
func membersAreWell(t *testing.T, w *workspace, kills int) {
	t.Helper()
	eventually(t, patience, "the pods run on ready nodes", func() error {
		s := w.status(t, "members")
		run := s.Pods.Total == storeFaultPods && s.Pods.ByPhase["Running"] == storeFaultPods && s.Nodes.Ready == storeFaultNodes
		if s.State != "running" || !run {
			return fmt.Errorf("the cluster is %s with the pods %+v and the nodes %+v; problems: %q", s.State, s.Pods, s.Nodes, s.Problems)
		}
		return nil
	})
	restarts := 0
	for _, c := range w.status(t, "members").Components {
		if strings.HasPrefix(c.Name, "store-") {
			restarts += c.Restarts
		} else if c.Restarts != 0 {
			t.Errorf("%s was restarted %d times (%s)", c.Name, c.Restarts, c.LastExit)
		}
	}
	if restarts != kills {
		t.Errorf("members were restarted %d times after %d kills", restarts, kills)
	}
	membersAreEqual(t, w)
	log := w.succeed(t, "logs", "kube-apiserver", "--name", "members").stdout
	if at := regexp.MustCompile(`(?m)^.*(consistency check failed|panic:).*$`).FindString(log); at != "" {
		t.Errorf("the log of kube-apiserver contains: %s", at)
	}
}

// membersAreEqual checks that all members have the same content at the revision of a write.
func membersAreEqual(t *testing.T, w *workspace) {
	t.Helper()
	put, err := clientOfStore(t, w, "members", "store-1").Put(t.Context(), "/end", "")
	must(t, err)
	type content struct {
		hash      uint32
		compacted int64
	}
	contents := map[content]string{}
	for _, name := range []string{"store-1", "store-2", "store-3"} {
		client := clientOfStore(t, w, "members", name)
		// A linearizable read waits until the member has applied the write.
		_, err := client.Get(t.Context(), "/end", clientv3.WithCountOnly())
		must(t, err)
		hash, err := client.HashKV(t.Context(), client.Endpoints()[0], put.Header.Revision)
		must(t, err)
		contents[content{hash.Hash, hash.CompactRevision}] += name + " "
	}
	if len(contents) != 1 {
		t.Errorf("members differ at revision %d (hash, compacted revision, members): %v", put.Header.Revision, contents)
	}
}

// cachesWereChecked reports whether the API server has compared its caches with the store.
func cachesWereChecked(t *testing.T, w *workspace) bool {
	t.Helper()
	passed := consistencyChecks(t, w.client(t, "members"))
	return passed["pods"] > 0 && passed["nodes"] > 0 && passed["leases"] > 0
}

// podChurn creates and deletes pods in rounds.
type podChurn struct {
	stopping atomic.Bool
	rounds   int
	ended    chan error
}

// startPodChurn starts rounds of pods that all run before they are deleted.
func startPodChurn(t *testing.T, w *workspace) *podChurn {
	c := &podChurn{ended: make(chan error, 1)}
	ctx := t.Context()
	go func() {
		for !c.stopping.Load() {
			for _, what := range []string{"create", "delete"} {
				cmd := w.command(ctx, "pods", what, "--name", "members", "--count", strconv.Itoa(storeFaultPods),
					"--prefix", "churn-", "--timeout", patience.String())
				if output, err := cmd.CombinedOutput(); err != nil {
					c.ended <- fmt.Errorf("pods %s: %w: %s", what, err, output)
					return
				}
			}
			c.rounds++
		}
		c.ended <- nil
	}()
	return c
}

// stop waits for the end of the current round, and returns the number of rounds.
func (c *podChurn) stop(t *testing.T) int {
	t.Helper()
	c.stopping.Store(true)
	must(t, <-c.ended)
	return c.rounds
}
