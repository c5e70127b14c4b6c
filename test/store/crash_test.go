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

// TestKill ends the process at random moments under load, again and again, and
// checks what a mode promises of acknowledged writes: in buffered and fsync mode
// all of them survive, in order and without gaps. CRASH_ROUNDS sets how often.
func TestKill(t *testing.T) {
	for _, mode := range []string{"buffered", "fsync"} {
		t.Run(mode, func(t *testing.T) {
			// Small, so that a kill meets snapshots and removal of the log as well.
			s := startMemEtcd(t, "--wal-mode", mode, "--snapshot-log-bytes", "100000")
			w := &writers{acknowledged: make([]int, 16)}
			rounds := envInt(t, "CRASH_ROUNDS", 15)
			for round := range rounds {
				w.run(t, s, time.Duration(20+rand.IntN(200))*time.Millisecond)
				s.restart()
				w.verify(t, s.dial(), round)
			}
			t.Logf("%d kills, %d writes acknowledged, none lost", rounds, w.total())
		})
	}
}

// TestLogStaysShort writes many times what is kept, and finds it again from a
// snapshot on "another disk" and a short log.
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
	// 40 MB were written; what remains is about two rounds of 4 MB.
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
	if err == nil || !strings.Contains(string(output), "is --snapshot-dir the one of before?") {
		t.Fatalf("%v: %s", err, output)
	}
}

// size is the bytes of all files in a directory.
func size(t *testing.T, dir string) (sum int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if errors.Is(err, os.ErrNotExist) {
			return nil // removed while we looked
		}
		sum += info.Size()
		return err
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return sum
}

// TestKillMemoryOnly shows that mode none keeps nothing, as it says.
func TestKillMemoryOnly(t *testing.T) {
	s := startMemEtcd(t, "--wal-mode", "none")
	mustPut(t, s.dial(), "key", "value")
	s.kill()
	s.restart()
	response, err := s.dial().kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("key")})
	if err != nil || response.Count != 0 || response.Header.Revision != 1 {
		t.Fatalf("%v %v", response, err)
	}
}

// writers each write the numbers 1, 2, 3… to a key of their own and to a second
// one in the same transaction, one write at a time.
type writers struct {
	// acknowledged is the last number that each was told is safe.
	acknowledged []int
	// revision is the newest that anybody saw.
	revision int64
}

func (w *writers) total() (sum int) {
	for _, n := range w.acknowledged {
		sum += n
	}
	return sum
}

// run writes until the server is killed, after the given time.
func (w *writers) run(t *testing.T, s *server, after time.Duration) {
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
				w.revision = max(w.revision, response.Header.Revision)
				mu.Unlock()
			}
		})
	}
	time.Sleep(after)
	s.kill()
	cancel()
	group.Wait()
}

func pairOf(writer, n int) *pb.TxnRequest {
	put := func(name string) *pb.RequestOp {
		key := fmt.Sprintf("/%s/%d", name, writer)
		request := &pb.PutRequest{Key: []byte(key), Value: []byte(strconv.Itoa(n))}
		return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: request}}
	}
	return &pb.TxnRequest{Success: []*pb.RequestOp{put("left"), put("right")}}
}

// verify reads everything back: nothing acknowledged is missing, both halves of
// each transaction are there or neither, every number from the first to the last
// is in the history, and the revision did not go back.
func (w *writers) verify(t *testing.T, a *api, round int) {
	t.Helper()
	for i := range w.acknowledged {
		left, right := get(t, a, fmt.Sprintf("/left/%d", i)), get(t, a, fmt.Sprintf("/right/%d", i))
		n, _ := strconv.Atoi(left)
		if left != right || n < w.acknowledged[i] {
			t.Fatalf("round %d: writer %d was told %d, found %q and %q", round, i, w.acknowledged[i], left, right)
		}
		w.acknowledged[i] = n
	}
	response, err := a.kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("/left/0")})
	if err != nil || response.Header.Revision < w.revision {
		t.Fatalf("round %d: revision %v after %d: %v", round, response.GetHeader(), w.revision, err)
	}
	w.revision = response.Header.Revision
	w.verifyHistory(t, a)
}

func (w *writers) verifyHistory(t *testing.T, a *api) {
	t.Helper()
	next := map[string]int{}
	for _, event := range history(t, a, 1, w.revision).(*pb.WatchResponse).Events {
		key := string(event.Kv.Key)
		n, _ := strconv.Atoi(string(event.Kv.Value))
		if n != next[key]+1 {
			t.Fatalf("%s: %d follows %d", key, n, next[key])
		}
		next[key] = n
	}
	if len(next) != 2*len(w.acknowledged) {
		t.Fatalf("history of %d keys", len(next))
	}
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
