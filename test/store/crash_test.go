package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// crashModes are the WAL modes under test: their flags, and which keys are not logged.
var crashModes = []struct {
	name     string
	flags    []string
	unlogged func(key string) bool
}{
	{"buffered", []string{"--wal-mode", "buffered"}, nothing},
	{"fsync", []string{"--wal-mode", "fsync"}, nothing},
	{"buffered and fsync", []string{"--wal-mode-prefix", "/left/=fsync"}, nothing},
	{"fsync and buffered", []string{"--wal-mode", "fsync", "--wal-mode-prefix", "/left/=buffered"}, nothing},
	{"buffered and none", []string{"--wal-mode-prefix", "/right/=none"}, isRight},
	{"fsync and none", []string{"--wal-mode", "fsync", "--wal-mode-prefix", "/right/=none"}, isRight},
	{"all three", []string{"--wal-mode-prefix", "/left/=fsync,/right/=none", "--wal-mode-prefix", "/right/1=buffered"},
		func(key string) bool { return isRight(key) && !strings.HasPrefix(key, "/right/1") }},
	{"none", []string{"--wal-mode", "none"}, func(string) bool { return true }},
}

func nothing(string) bool { return false }

func isRight(key string) bool { return strings.HasPrefix(key, "/right/") }

// TestKill kills the process at random moments under load, several rounds in each WAL
// mode. After each restart, every acknowledged write of a logged key is present, in order
// and without gaps. Unlogged keys no longer exist, and their watchers get a compaction
// error. The revision never decreases. CRASH_ROUNDS sets the number of rounds per mode.
func TestKill(t *testing.T) {
	for _, mode := range crashModes {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			// Small, so that kills also hit snapshots and trimming of the log.
			s := startMemEtcd(t, append([]string{"--snapshot-log-bytes", "100000"}, mode.flags...)...)
			w := newWriters(mode.unlogged)
			memoryOnly := mode.unlogged("/left/0")
			lease := grantLong(t, s.dial())
			rounds, stops := envInt(t, "CRASH_ROUNDS", 12), 0
			for round := range rounds {
				// Some rounds shut down cleanly.
				end := s.kill
				if rand.IntN(10) == 0 {
					stops++
					end = func() {
						if err := s.stop(); err != nil {
							t.Error(err)
						}
					}
				}
				w.run(t, s, time.Duration(5+rand.IntN(150))*time.Millisecond, end)
				s.restart()
				a := s.dial()
				if memoryOnly {
					w.forget()
				}
				w.verify(t, a, round)
				if !memoryOnly {
					verifyLong(t, a, lease)
				}
				if rand.IntN(4) == 0 && w.revision > w.compacted {
					w.compact(t, a)
				}
				if err := a.conn.Close(); err != nil {
					t.Fatal(err)
				}
			}
			t.Logf("%d kills, %d clean shutdowns, %d acknowledged writes verified", rounds-stops, stops, w.writes)
		})
	}
}

const longTTL = 100_000

func grantLong(t *testing.T, a *api) int64 {
	t.Helper()
	lease, err := a.lease.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{TTL: longTTL})
	if err != nil {
		t.Fatal(err)
	}
	return lease.ID
}

// verifyLong checks that the lease survived with most of its TTL: renewals are recovered,
// and downtime does not reduce the TTL.
func verifyLong(t *testing.T, a *api, id int64) {
	t.Helper()
	left, err := a.lease.LeaseTimeToLive(t.Context(), &pb.LeaseTimeToLiveRequest{ID: id})
	if err != nil || left.TTL < longTTL/2 || left.TTL > longTTL {
		t.Fatalf("the lease has %v left: %v", left, err)
	}
}

// TestLogStaysShort overwrites the same keys many times, and restores them from a snapshot
// in another directory and a short log.
func TestLogStaysShort(t *testing.T) {
	snapshots := filepath.Join(t.TempDir(), "snapshots")
	s := startMemEtcd(t, "--snapshot-dir", snapshots, "--snapshot-log-bytes", "4000000")
	a := s.dial()
	value := string(make([]byte, 100_000))
	for i := range 400 {
		revision := mustPut(t, a, fmt.Sprintf("key-%d", i%10), value)
		if i%50 == 49 {
			if _, err := a.kv.Compact(t.Context(), &pb.CompactionRequest{Revision: revision - 5}); err != nil {
				t.Fatal(err)
			}
		}
	}
	grant, err := a.lease.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: 7, TTL: 1000})
	if err != nil {
		t.Fatal(err)
	}
	// 40 MB were written; about two rounds of 4 MB remain.
	deadline := time.Now().Add(startTimeout)
	for size(t, filepath.Join(s.args[1], "wal")) > 15_000_000 || size(t, snapshots) == 0 {
		if time.Now().After(deadline) {
			t.Fatalf("log %d, snapshots %d bytes", size(t, filepath.Join(s.args[1], "wal")), size(t, snapshots))
		}
		time.Sleep(10 * time.Millisecond)
	}
	before := history(t, a, 396, 401)
	s.kill()
	s.restart()
	a = s.dial()
	if difference := compare(before, nil, history(t, a, 396, 401), nil); difference != "" {
		t.Fatal(difference)
	}
	if left, err := a.lease.LeaseTimeToLive(t.Context(), &pb.LeaseTimeToLiveRequest{ID: grant.ID}); err != nil || left.TTL < 900 {
		t.Fatalf("%v %v", left, err)
	}
	s.kill()
	elsewhere := append(slices.Clone(s.args), "--snapshot-dir", t.TempDir(), "--log-level", "error")
	output, err := exec.Command(s.cmd.Path, elsewhere...).CombinedOutput()
	if err == nil || !strings.Contains(string(output), "is --snapshot-dir the directory that was used before?") {
		t.Fatalf("%v: %s", err, output)
	}
}

// size returns the total size of the files in a directory in bytes.
func size(t *testing.T, dir string) (sum int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if errors.Is(err, os.ErrNotExist) {
			return nil // removed during the walk
		}
		sum += info.Size()
		return err
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return sum
}

// writers are concurrent clients. Each writes the numbers 1, 2, 3… to two keys of its own in
// one transaction, one transaction at a time.
type writers struct {
	// unlogged returns whether a restart loses the key.
	unlogged func(key string) bool
	// acknowledged is the last acknowledged number of each writer; before is that number at
	// the last compaction.
	acknowledged, before []int
	// writes is the number of all acknowledged writes.
	writes int
	// revision is the newest revision that a client has seen, compacted the last compacted one.
	revision, compacted int64
}

func newWriters(unlogged func(string) bool) *writers {
	const count = 16
	return &writers{unlogged: unlogged, acknowledged: make([]int, count), before: make([]int, count), revision: 1}
}

// forget starts over with an empty store.
func (w *writers) forget() {
	clear(w.acknowledged)
	clear(w.before)
	w.revision, w.compacted = 1, 0
}

// run writes until the server stops after the given time.
func (w *writers) run(t *testing.T, s *server, after time.Duration, end func()) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a := s.dial()
	var mu sync.Mutex
	var group sync.WaitGroup
	for i := range w.acknowledged {
		group.Go(func() {
			for n := w.acknowledged[i] + 1; ; n++ {
				response, err := a.kv.Txn(ctx, pairOf(i, n))
				if err != nil {
					return
				}
				mu.Lock()
				w.acknowledged[i] = n
				w.writes++
				w.revision = max(w.revision, response.Header.Revision)
				mu.Unlock()
			}
		})
	}
	time.Sleep(after)
	end()
	cancel()
	group.Wait()
	if err := a.conn.Close(); err != nil {
		t.Error(err)
	}
}

func pairOf(writer, n int) *pb.TxnRequest {
	put := func(name string) *pb.RequestOp {
		key := fmt.Sprintf("/%s/%d", name, writer)
		request := &pb.PutRequest{Key: []byte(key), Value: []byte(strconv.Itoa(n))}
		return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: request}}
	}
	return &pb.TxnRequest{Success: []*pb.RequestOp{put("left"), put("right")}}
}

// verify reads all keys and the history: no acknowledged write is missing, each
// transaction is present completely or not at all, the history has every number, and the
// revision did not decrease. Unlogged keys no longer exist, and their watchers get an
// error.
func (w *writers) verify(t *testing.T, a *api, round int) {
	t.Helper()
	response, err := a.kv.Range(t.Context(), &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}})
	if err != nil || response.Header.Revision < w.revision {
		t.Fatalf("round %d: revision %v after %d: %v", round, response.GetHeader(), w.revision, err)
	}
	found := map[string]int{}
	for _, kv := range response.Kvs {
		if found[string(kv.Key)], err = strconv.Atoi(string(kv.Value)); err != nil {
			t.Fatal(err)
		}
	}
	gone := false
	for i, want := range w.acknowledged {
		left, right := fmt.Sprintf("/left/%d", i), fmt.Sprintf("/right/%d", i)
		for _, key := range []string{left, right} {
			switch n, exists := found[key]; {
			case w.unlogged(key):
				gone = gone || want > 0
				if exists {
					t.Fatalf("round %d: key %s is not logged, but has value %d after the restart", round, key, n)
				}
			case n < want:
				t.Fatalf("round %d: key %s was acknowledged up to %d, found %d", round, key, want, n)
			default:
				w.acknowledged[i] = n
			}
		}
		if !w.unlogged(left) && !w.unlogged(right) && found[left] != found[right] {
			t.Fatalf("round %d: transaction applied partially: the keys have values %d and %d", round, found[left], found[right])
		}
	}
	if gone {
		w.verifyCompactionError(t, a, round)
	}
	// The store continues far above every revision that was seen, even if none was.
	if jumped := response.Header.Revision > w.revision+1000; gone || jumped {
		w.compacted = response.Header.Revision
		copy(w.before, w.acknowledged)
	}
	w.revision = response.Header.Revision
	w.verifyHistory(t, a)
}

// verifyCompactionError checks that a resumed watcher gets a compaction error.
func (w *writers) verifyCompactionError(t *testing.T, a *api, round int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	stream, err := a.watch.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	create := &pb.WatchCreateRequest{Key: []byte{0}, RangeEnd: []byte{0}, StartRevision: w.revision + 1}
	send(t, stream, &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}})
	for {
		response, err := stream.Recv()
		if err != nil || len(response.Events) > 0 {
			t.Fatalf("round %d: from %d on: %v %v", round, w.revision+1, response, err)
		}
		if response.CompactRevision > w.revision+1 {
			return
		}
	}
}

func (w *writers) verifyHistory(t *testing.T, a *api) {
	t.Helper()
	if w.revision <= max(w.compacted, 1) {
		return
	}
	next := map[string]int{}
	for i, n := range w.before {
		next[fmt.Sprintf("/left/%d", i)], next[fmt.Sprintf("/right/%d", i)] = n, n
	}
	for _, event := range history(t, a, w.compacted+1, w.revision).(*pb.WatchResponse).Events {
		key := string(event.Kv.Key)
		n, _ := strconv.Atoi(string(event.Kv.Value))
		if n != next[key]+1 {
			t.Fatalf("%s: %d follows %d", key, n, next[key])
		}
		next[key] = n
	}
}

// compact compacts the store at the newest revision.
func (w *writers) compact(t *testing.T, a *api) {
	t.Helper()
	if _, err := a.kv.Compact(t.Context(), &pb.CompactionRequest{Revision: w.revision}); err != nil {
		t.Fatal(err)
	}
	w.compacted = w.revision
	copy(w.before, w.acknowledged)
}

func get(t *testing.T, a *api, key string) string {
	t.Helper()
	response, err := a.kv.Range(t.Context(), &pb.RangeRequest{Key: []byte(key)})
	if err != nil {
		t.Fatal(err)
	}
	if len(response.Kvs) == 0 {
		return ""
	}
	return string(response.Kvs[0].Value)
}

func mustPut(t *testing.T, a *api, key, value string) int64 {
	t.Helper()
	response, err := a.kv.Put(t.Context(), &pb.PutRequest{Key: []byte(key), Value: []byte(value)})
	if err != nil {
		t.Fatal(err)
	}
	return response.Header.Revision
}
