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

// crashModes are the combinations of WAL modes under test. unlogged returns whether the log does not
// contain a key.
var crashModes = []struct {
	name     string
	flags    []string
	unlogged func(key string) bool
}{
	{"buffered", []string{"--wal-mode", "buffered"}, noKey},
	{"fsync", []string{"--wal-mode", "fsync"}, noKey},
	{"buffered and fsync", []string{"--wal-mode-prefix", "/left/=fsync"}, noKey},
	{"fsync and buffered", []string{"--wal-mode", "fsync", "--wal-mode-prefix", "/left/=buffered"}, noKey},
	{"buffered and none", []string{"--wal-mode-prefix", "/right/=none"}, isRight},
	{"fsync and none", []string{"--wal-mode", "fsync", "--wal-mode-prefix", "/right/=none"}, isRight},
	{"all three", []string{"--wal-mode-prefix", "/left/=fsync,/right/=none", "--wal-mode-prefix", "/right/1=buffered"},
		func(key string) bool { return isRight(key) && !strings.HasPrefix(key, "/right/1") }},
	{"none", []string{"--wal-mode", "none"}, func(string) bool { return true }},
}

func noKey(string) bool { return false }

func isRight(key string) bool { return strings.HasPrefix(key, "/right/") }

// TestKill kills mem_etcd at random times under load, in several rounds for each combination of WAL
// modes. After each restart, every acknowledged write of a logged key must be present, in order and
// without gaps. Keys that are not logged must not exist, and watchers that resume must get a compaction
// error. The revision must never decrease. CRASH_ROUNDS sets the number of rounds per combination.
func TestKill(t *testing.T) {
	for _, mode := range crashModes {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			// The log is short, so that kills also occur during snapshots and truncations of the log.
			s := startMemEtcd(t, append([]string{"--snapshot-log-bytes", "100000"}, mode.flags...)...)
			w := newWriters(mode.unlogged)
			memoryOnly := mode.unlogged("/left/0")
			lease := grantLongLease(t, s.dial())
			rounds, stops := envInt(t, "CRASH_ROUNDS", 12), 0
			for round := range rounds {
				// About one round in ten ends with a clean shutdown.
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
					w.reset()
				}
				w.verify(t, a, round)
				if !memoryOnly {
					verifyLongLease(t, a, lease)
				}
				if rand.IntN(4) == 0 && w.revision > w.compacted {
					w.compact(t, a)
				}
				if err := a.conn.Close(); err != nil {
					t.Fatal(err)
				}
				if (round+1)%100 == 0 {
					t.Logf("%d of %d rounds", round+1, rounds)
				}
			}
			t.Logf("%d kills, %d clean shutdowns, %d acknowledged writes verified", rounds-stops, stops, w.writes)
		})
	}
}

// longTTL is the TTL of a lease that does not expire during a test, in seconds.
const longTTL = 100_000

func grantLongLease(t *testing.T, a *api) int64 {
	t.Helper()
	lease, err := a.lease.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{TTL: longTTL})
	if err != nil {
		t.Fatal(err)
	}
	return lease.ID
}

// verifyLongLease checks that a restarted server still has the lease, with at least half of its TTL.
func verifyLongLease(t *testing.T, a *api, id int64) {
	t.Helper()
	lease, err := a.lease.LeaseTimeToLive(t.Context(), &pb.LeaseTimeToLiveRequest{ID: id})
	if err != nil || lease.TTL < longTTL/2 || lease.TTL > longTTL {
		t.Fatalf("time to live of the lease: %v, error %v; want between %d s and %d s", lease, err, longTTL/2, longTTL)
	}
}

// TestLogStaysShort overwrites the same keys many times. The log must stay short, and a restarted server
// must recover from the snapshot and the log. With another snapshot directory it must refuse to start.
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
	// The puts have 40 MB. Snapshots at intervals of 4 MB allow mem_etcd to remove all but the last
	// segments of the log.
	deadline := time.Now().Add(startTimeout)
	for size(t, filepath.Join(s.args[1], "wal")) > 15_000_000 || size(t, snapshots) == 0 {
		if time.Now().After(deadline) {
			t.Fatalf("the log has %d bytes and the snapshots %d bytes; want at most 15,000,000 and more than 0",
				size(t, filepath.Join(s.args[1], "wal")), size(t, snapshots))
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
	if lease, err := a.lease.LeaseTimeToLive(t.Context(), &pb.LeaseTimeToLiveRequest{ID: grant.ID}); err != nil || lease.TTL < 900 {
		t.Fatalf("time to live of the lease: %v, error %v; want at least 900 s", lease, err)
	}
	s.kill()
	otherSnapshots := append(slices.Clone(s.args), "--snapshot-dir", t.TempDir(), "--log-level", "error")
	output, err := exec.Command(s.cmd.Path, otherSnapshots...).CombinedOutput()
	if err == nil || !strings.Contains(string(output), "is --snapshot-dir the directory that was used before?") {
		t.Fatalf("start with another snapshot directory: error %v, output %s", err, output)
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

// writers are concurrent clients. Each has two keys and writes the numbers 1, 2, 3, … to both: one
// transaction per number, one after the other.
type writers struct {
	// unlogged returns whether the log does not contain a key.
	unlogged func(key string) bool
	// acknowledged is the last acknowledged number of each writer. atCompaction is the value of
	// acknowledged at the last compaction, atRestart that after the last restart.
	acknowledged, atCompaction, atRestart []int
	// writes is the number of all acknowledged writes.
	writes int
	// revision is the newest revision in a response, compacted the last compaction revision.
	revision, compacted int64
}

func newWriters(unlogged func(string) bool) *writers {
	const count = 16
	return &writers{
		unlogged: unlogged, acknowledged: make([]int, count), atCompaction: make([]int, count), atRestart: make([]int, count), revision: 1,
	}
}

// reset sets the state to that of an empty store.
func (w *writers) reset() {
	clear(w.acknowledged)
	clear(w.atCompaction)
	clear(w.atRestart)
	w.revision, w.compacted = 1, 0
}

// run writes concurrently. After the given time it calls end, which stops the server, and waits until
// all writers have failed.
func (w *writers) run(t *testing.T, s *server, after time.Duration, end func()) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a := s.dial()
	var mu sync.Mutex
	var group sync.WaitGroup
	for i := range w.acknowledged {
		group.Go(func() {
			for n := w.acknowledged[i] + 1; ; n++ {
				response, err := a.kv.Txn(ctx, putsOf(i, n))
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

// putsOf returns the transaction with which a writer writes the number n to its keys.
func putsOf(writer, n int) *pb.TxnRequest {
	put := func(name string) *pb.RequestOp {
		key := fmt.Sprintf("/%s/%d", name, writer)
		request := &pb.PutRequest{Key: []byte(key), Value: []byte(strconv.Itoa(n))}
		return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: request}}
	}
	return &pb.TxnRequest{Success: []*pb.RequestOp{put("left"), put("right")}}
}

// verify reads all keys and the history after a restart. No acknowledged write of a logged key may be
// missing, each transaction must be present completely or not at all, the history must contain every
// number, and the revision must not have decreased. Keys that are not logged must not exist. If they have
// changed since the last restart, watchers that resume must get a compaction error.
func (w *writers) verify(t *testing.T, a *api, round int) {
	t.Helper()
	response, err := a.kv.Range(t.Context(), &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}})
	if err != nil || response.Header.Revision < w.revision {
		t.Fatalf("round %d: after the restart the header is %v, error %v; want at least revision %d", round, response.GetHeader(), err, w.revision)
	}
	found := map[string]int{}
	for _, kv := range response.Kvs {
		if found[string(kv.Key)], err = strconv.Atoi(string(kv.Value)); err != nil {
			t.Fatal(err)
		}
	}
	hasLostWrites := false
	for i, want := range w.acknowledged {
		left, right := fmt.Sprintf("/left/%d", i), fmt.Sprintf("/right/%d", i)
		for _, key := range []string{left, right} {
			switch n, exists := found[key]; {
			case w.unlogged(key):
				hasLostWrites = hasLostWrites || want > w.atRestart[i]
				if exists {
					t.Fatalf("round %d: key %s is not logged, but has value %d after the restart", round, key, n)
				}
			case n < want:
				t.Fatalf("round %d: key %s has value %d, but %d was acknowledged", round, key, n, want)
			default:
				w.acknowledged[i] = n
			}
		}
		if !w.unlogged(left) && !w.unlogged(right) && found[left] != found[right] {
			t.Fatalf("round %d: transaction applied partially: the keys have values %d and %d", round, found[left], found[right])
		}
	}
	if hasLostWrites {
		w.verifyCompactionError(t, a, round)
	}
	// After a crash that can have lost writes, mem_etcd skips to a revision far above all published
	// ones and compacts there, even if no client has received such a revision.
	if hasSkipped := response.Header.Revision > w.revision+1000; hasLostWrites || hasSkipped {
		w.compacted = response.Header.Revision
		copy(w.atCompaction, w.acknowledged)
	}
	w.revision = response.Header.Revision
	copy(w.atRestart, w.acknowledged)
	w.verifyHistory(t, a)
}

// verifyCompactionError checks that a watcher that resumes after the newest received revision gets a
// compaction error.
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
			t.Fatalf("round %d: a watch from revision %d received %v, error %v; want a compaction error", round, w.revision+1, response, err)
		}
		if response.CompactRevision > w.revision+1 {
			return
		}
	}
}

// verifyHistory checks that the events since the last compaction contain each number of each key.
func (w *writers) verifyHistory(t *testing.T, a *api) {
	t.Helper()
	if w.revision <= max(w.compacted, 1) {
		return
	}
	last := map[string]int{}
	for i, n := range w.atCompaction {
		last[fmt.Sprintf("/left/%d", i)], last[fmt.Sprintf("/right/%d", i)] = n, n
	}
	for _, event := range history(t, a, w.compacted+1, w.revision).(*pb.WatchResponse).Events {
		key := string(event.Kv.Key)
		n, _ := strconv.Atoi(string(event.Kv.Value))
		if n != last[key]+1 {
			t.Fatalf("in the history of key %s, the number %d follows %d", key, n, last[key])
		}
		last[key] = n
	}
}

// compact compacts the store at the newest revision.
func (w *writers) compact(t *testing.T, a *api) {
	t.Helper()
	if _, err := a.kv.Compact(t.Context(), &pb.CompactionRequest{Revision: w.revision}); err != nil {
		t.Fatal(err)
	}
	w.compacted = w.revision
	copy(w.atCompaction, w.acknowledged)
}

// get returns the value of a key, or "" if the key does not exist.
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

// mustPut puts a key and returns its revision.
func mustPut(t *testing.T, a *api, key, value string) int64 {
	t.Helper()
	response, err := a.kv.Put(t.Context(), &pb.PutRequest{Key: []byte(key), Value: []byte(value)})
	if err != nil {
		t.Fatal(err)
	}
	return response.Header.Revision
}
