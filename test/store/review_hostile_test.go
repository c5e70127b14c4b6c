package store

import (
	"fmt"
	"slices"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// TestReviewPinnedValues starts a range on each of a few connections, reads nothing, and then deletes and
// compacts the values. Responses that clients do not read must not keep more memory than documented.
func TestReviewPinnedValues(t *testing.T) {
	s := startMemEtcd(t, "--wal-mode", "none", "--quota-backend-bytes", "400000000")
	a := s.dial()
	before := residentMemory(t, s)
	var conns []*rawConn
	for round := range scaled(12, 40) {
		revision := fillKeys(t, s, 200, 1<<20)
		conn := dialRaw(t, s)
		conns = append(conns, conn)
		request := &pb.RangeRequest{Key: []byte("filled/"), RangeEnd: []byte("filled0")}
		if err := conn.start(1, "/etcdserverpb.KV/Range", true, message(t, request)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(200 * time.Millisecond)
		if _, err := a.kv.DeleteRange(t.Context(), &pb.DeleteRangeRequest{Key: []byte("filled/"), RangeEnd: []byte("filled0")}); err != nil {
			t.Fatal(err)
		}
		if _, err := a.kv.Compact(t.Context(), &pb.CompactionRequest{Revision: revision + 1, Physical: true}); err != nil {
			t.Fatal(err)
		}
		t.Logf("round %d: memory grew by %s", round, mib(residentMemory(t, s)-before))
	}
	for _, conn := range conns {
		conn.Conn.Close()
	}
	time.Sleep(2 * time.Second)
	t.Logf("after the connections were closed: %s", mib(residentMemory(t, s)-before))
}

func waits(t *testing.T, s *server, key string, count int) []time.Duration {
	a := s.dial()
	mustPut(t, a, "warm", "")
	var took []time.Duration
	for range count {
		start := time.Now()
		mustPut(t, a, key, "v")
		took = append(took, time.Since(start).Round(time.Millisecond))
		time.Sleep(20 * time.Millisecond)
	}
	slices.Sort(took)
	return took
}

func manyWatches(t *testing.T, s *server, streams, perStream int, create func(n int) *pb.WatchCreateRequest) {
	for i := range streams {
		stream := openWatchStream(t, s.dial())
		go func() {
			for n := range perStream {
				if stream.Send(createRequest(create(i*perStream+n))) != nil {
					return
				}
			}
		}()
		for range perStream {
			if created := receive(t, stream); created.Canceled {
				t.Fatalf("a watch was not created: %v", created)
			}
		}
		go func() {
			for {
				if _, err := stream.Recv(); err != nil {
					return
				}
			}
		}()
	}
}

// TestReviewSameSpan puts a key that very many watchers watch.
func TestReviewSameSpan(t *testing.T) {
	s := startMemEtcd(t, "--wal-mode", "none")
	manyWatches(t, s, 10, scaled(80_000, 100_000), func(int) *pb.WatchCreateRequest {
		return &pb.WatchCreateRequest{Key: []byte("q"), Filters: []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT}}
	})
	t.Logf("other key: %v", waits(t, s, "other", 10))
	t.Logf("watched key: %v", waits(t, s, "q", 10))
	stop := bystander(t, s)
	waits(t, s, "q", 20)
	t.Log(stop())
}

// TestReviewManySpans deletes many keys that no watcher wants, with very many watched ranges.
func TestReviewManySpans(t *testing.T) {
	s := startMemEtcd(t, "--wal-mode", "none")
	manyWatches(t, s, 10, scaled(80_000, 100_000), func(n int) *pb.WatchCreateRequest {
		return &pb.WatchCreateRequest{Key: fmt.Appendf(nil, "q%08d", n), RangeEnd: fmt.Appendf(nil, "q%08d0", n)}
	})
	fillKeys(t, s, 8200, 10)
	stop := bystander(t, s)
	start := time.Now()
	if _, err := s.dial().kv.DeleteRange(t.Context(), &pb.DeleteRangeRequest{Key: []byte("filled/"), RangeEnd: []byte("filled0")}); err != nil {
		t.Fatal(err)
	}
	t.Logf("deletion took %v; %s", time.Since(start).Round(time.Millisecond), stop())
}
