package storecluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/k8s-1m/k8s-1m/internal/util/storemembers"
	"github.com/k8s-1m/k8s-1m/test/store-cluster/check"
)

// TestFaults injects faults into the members of a store under load, in rounds. Each round has its own keys, and is checked
// when all members serve again.
//
//	STORE               etcd or mem_etcd
//	REPLICATION_LOG     that of mem_etcd: fsync, buffered or memory
//	MEMBERS             number of members
//	KILLS               number of kills after which the run ends; other faults occur besides
//	STORE_CLUSTER_SEED  repeats the faults of an earlier run; the timing still differs
func TestFaults(t *testing.T) {
	s := readSettings(t)
	t.Logf("STORE=%s MEMBERS=%d KILLS=%d STORE_CLUSTER_SEED=%d", s.store, s.members, s.kills, s.seed)
	r := newRun(t, s)
	for r.injector.kills < s.kills {
		r.round(t)
		r.report(t, false)
	}
	r.awaitExpiry(t)
	r.report(t, true)
}

// run is a run of [TestFaults].
type run struct {
	settings settings
	cluster  *storemembers.Cluster
	injector *injector
	started  time.Time
	random   *rand.Rand
	loads    []load
	watchers []*watcher
	// all is a client of all members.
	all *clientv3.Client

	rounds, requests, unanswered int
	reported                     time.Time
	// first is the first revision of the current round.
	first    int64
	expiring []string
}

// load is a client with what it does.
type load struct {
	client *client
	do     work
}

// newRun starts the members, the clients and the watchers.
func newRun(t *testing.T, s settings) *run {
	t.Helper()
	cluster, network := start(t, s)
	random := rand.New(rand.NewPCG(s.seed, 0))
	r := &run{settings: s, cluster: cluster, started: time.Now(), reported: time.Now(), random: random, all: dial(t, cluster.Endpoints()...), first: 1}
	r.injector = &injector{cluster: cluster, network: network, random: random, counts: map[string]int{}}
	r.injector.deck = &deck{random: random, withNetwork: network != nil}
	// Each kind of load has a client of one member and a client of all members. Registers have one for each member.
	for n, do := range []work{appendElement, useSet, useLease} {
		r.addLoad(t, do, cluster.Endpoints()[n%s.members])
		r.addLoad(t, do, cluster.Endpoints()...)
	}
	for _, endpoint := range cluster.Endpoints() {
		r.addLoad(t, useRegister, endpoint)
	}
	r.addLoad(t, useRegister, cluster.Endpoints()...)
	var watching sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	for _, m := range cluster.Members {
		w := &watcher{store: dial(t, m.ClientURL), stream: check.Stream{Name: m.Name, From: 1}}
		r.watchers = append(r.watchers, w)
		watching.Go(func() { w.run(ctx) })
	}
	t.Cleanup(func() { cancel(); watching.Wait() })
	return r
}

func (r *run) addLoad(t *testing.T, do work, endpoints ...string) {
	id := len(r.loads) + 1
	r.loads = append(r.loads, load{&client{id: id, store: dial(t, endpoints...), random: rand.New(rand.NewPCG(r.settings.seed, uint64(id)))}, do})
}

// round runs the load, injects some faults, and checks what the clients saw.
func (r *run) round(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r.rounds++
	record := &record{prefix: fmt.Sprintf("round-%d/", r.rounds), started: r.started}
	var group sync.WaitGroup
	for _, l := range r.loads {
		group.Go(func() { l.client.run(record, l.do) })
	}
	faults, err := "", error(nil)
	for range 1 + r.random.IntN(3) {
		time.Sleep(time.Duration(r.random.IntN(300)) * time.Millisecond)
		what, injectErr := r.injector.inject(ctx)
		faults += what
		if err = injectErr; err != nil {
			break
		}
	}
	record.stopped.Store(true)
	group.Wait()
	if err == nil {
		err = r.verify(ctx, record)
	}
	if err != nil {
		t.Fatalf("round %d: %v; faults: %s", r.rounds, err, strings.TrimSuffix(faults, "; "))
	}
	r.requests += len(record.operations)
	r.unanswered += record.unanswered
	r.expiring = append(r.expiring, record.expiring...)
}

// verify checks a round, and compacts the store at its end.
func (r *run) verify(ctx context.Context, record *record) error {
	last, err := r.mark(ctx, record)
	if err != nil {
		return err
	}
	history, err := historyOf(ctx, r.all, r.first, last)
	if err != nil {
		return err
	}
	for _, w := range r.watchers {
		if err := w.reached(ctx, last); err != nil {
			return err
		}
		if err := w.verify(history, last); err != nil {
			return err
		}
	}
	list, set, err := r.final(ctx, record, last)
	if err != nil {
		return err
	}
	if err := errors.Join(
		history.Err(),
		check.RealTime(record.operations),
		check.Responses(record.operations, history),
		check.Linearizable(record.operations, patience),
		check.Appends(record.appends, record.listReadings, list),
		check.Sets(record.adds, record.setReadings, set),
		check.Leases(record.leases, record.keyReads),
		r.compareHashes(ctx, last),
	); err != nil {
		return err
	}
	r.first = last + 1
	_, err = r.all.Compact(ctx, last)
	return err
}

// mark puts a key at the end of a round, and returns its revision.
func (r *run) mark(ctx context.Context, record *record) (int64, error) {
	answer, err := r.all.Put(ctx, record.prefix+"end", "x")
	if err != nil {
		return 0, fmt.Errorf("put after all members served: %w", err)
	}
	return answer.Header.Revision, nil
}

// final returns the list and the set at a revision.
func (r *run) final(ctx context.Context, record *record, revision int64) (list, set []string, err error) {
	answer, err := r.all.Get(ctx, record.listKey(), clientv3.WithRev(revision))
	if err != nil {
		return nil, nil, err
	}
	if len(answer.Kvs) == 1 {
		list = elements(string(answer.Kvs[0].Value))
	}
	set, err = setAt(ctx, r.all, record, revision)
	return list, set, err
}

// compareHashes checks that all members have the same content up to a revision.
func (r *run) compareHashes(ctx context.Context, revision int64) error {
	type content struct {
		hash      uint32
		compacted int64
	}
	contents := map[content]string{}
	for _, m := range r.cluster.Members {
		answer, err := r.all.HashKV(ctx, m.ClientURL, revision)
		if err != nil {
			return fmt.Errorf("hash of %s: %w", m.Name, err)
		}
		contents[content{answer.Hash, answer.CompactRevision}] += m.Name + " "
	}
	if len(contents) > 1 {
		return fmt.Errorf("members differ at revision %d (hash, compacted revision, members): %v", revision, contents)
	}
	return nil
}

// awaitExpiry waits until all leases that nobody renewed have expired.
func (r *run) awaitExpiry(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, key := range r.expiring {
		for {
			answer, err := r.all.Get(ctx, key)
			must(t, err)
			if answer.Count == 0 {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// report logs the progress, every 15 s and at the end.
func (r *run) report(t *testing.T, atEnd bool) {
	if !atEnd && time.Since(r.reported) < 15*time.Second {
		return
	}
	r.reported = time.Now()
	elapsed := time.Since(r.started)
	t.Logf("%d of %d kills in %.0fs (%.2f/s): %d rounds, %d requests, %d of them without response",
		r.injector.kills, r.settings.kills, elapsed.Seconds(), float64(r.injector.kills)/elapsed.Seconds(), r.rounds, r.requests, r.unanswered)
	if !atEnd {
		return
	}
	t.Logf("%d leases expired", len(r.expiring))
	for _, f := range faults {
		t.Logf("%4d × %s", r.injector.counts[f.name], f.name)
	}
}
