package store

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/net/http2"
)

// The tests in this file are hostile clients that create many watches, and make the server keep events
// for them.

// peakMemory returns the maximum resident memory that a server has had, in bytes.
func peakMemory(t *testing.T, s *server) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	var kib int
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// filledWatch returns a request for a watch of all keys of fillKeys. Each end makes a span of its own.
func filledWatch(end string) *pb.WatchCreateRequest {
	return &pb.WatchCreateRequest{Key: []byte("filled/"), RangeEnd: []byte("filled0" + end)}
}

func createRequest(create *pb.WatchCreateRequest) *pb.WatchRequest {
	return &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}}
}

// TestHostileOverlappingWatches deletes many keys that many watches with different spans contain. The
// server must not queue all events for all watches, and a client that reads must get all of its own.
func TestHostileOverlappingWatches(t *testing.T) {
	s := startMemEtcd(t, "--wal-mode", "none")
	keys, watches := scaled(20_000, 100_000), scaled(1000, 2000)
	fillKeys(t, s, keys, 10)
	conn := dialRaw(t, s)
	if err := conn.call(1, "/etcdserverpb.Watch/Watch"); err != nil {
		t.Fatal(err)
	}
	for n := range watches {
		if err := conn.WriteData(1, false, message(t, createRequest(filledWatch(fmt.Sprint(n))))); err != nil {
			t.Fatal(err)
		}
	}
	conn.readUntil(t, func(frame http2.Frame) bool { return frame.Header().Type == http2.FrameData })
	reader := openWatchStream(t, s.dial())
	send(t, reader, createRequest(filledWatch("")))
	receive(t, reader)

	stop, before, start := bystander(t, s), peakMemory(t, s), time.Now()
	_, err := s.dial().kv.DeleteRange(t.Context(), &pb.DeleteRangeRequest{Key: []byte("filled/"), RangeEnd: []byte("filled0")})
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(start)
	if events := len(receive(t, reader).Events); events != keys {
		t.Errorf("the client that reads got %d events; want %d in one response", events, keys)
	}
	grown := peakMemory(t, s) - before
	if grown > 128<<20 {
		t.Errorf("memory grew by up to %s; want at most 128 MiB", mib(grown))
	}
	t.Logf("%d keys deleted in %v with %d watches of them; memory grew by up to %s; %s", keys, took.Round(time.Millisecond), watches, mib(grown), stop())
}

// TestHostileQueues opens many watch streams on a connection that reads nothing, and puts their key. The
// memory that the queues of all streams use together must be bounded.
func TestHostileQueues(t *testing.T) {
	s := startMemEtcd(t, "--wal-mode", "none")
	streams := scaled(1000, 5000)
	conn := dialRaw(t, s)
	create := message(t, createRequest(filledWatch("")))
	for n := range streams {
		if err := conn.start(uint32(2*n+1), "/etcdserverpb.Watch/Watch", false, create); err != nil {
			t.Fatal(err)
		}
	}
	// The bystander's first request is handled after the watches were created.
	stop := bystander(t, s)
	a := s.dial()
	mustPut(t, a, "other", "")
	before := peakMemory(t, s)
	for n := range 8192 {
		mustPut(t, a, fmt.Sprintf("filled/%d", n%10), "value")
	}
	grown := peakMemory(t, s) - before
	if grown > 550<<20 {
		t.Errorf("memory grew by up to %s; want at most 550 MiB", mib(grown))
	}
	t.Logf("8,192 puts watched by %d streams that read nothing; memory grew by up to %s; %s", streams, mib(grown), stop())
}

// TestHostileDeletedHistory reads deletions of large values with the previous pairs on connections that read
// nothing. Only a bounded part may be in memory for each.
func TestHostileDeletedHistory(t *testing.T) {
	s := startMemEtcd(t, "--wal-mode", "none")
	const size = 1 << 20
	keys, connections := scaled(150, 500), 4
	revision := fillKeys(t, s, keys, size)
	a := s.dial()
	for n := range keys {
		if _, err := a.kv.DeleteRange(t.Context(), &pb.DeleteRangeRequest{Key: fmt.Appendf(nil, "filled/%08d", n)}); err != nil {
			t.Fatal(err)
		}
	}
	stop, before := bystander(t, s), peakMemory(t, s)
	create := filledWatch("")
	create.StartRevision, create.PrevKv = revision+1, true
	for range connections {
		conn := dialRaw(t, s)
		if err := conn.start(1, "/etcdserverpb.Watch/Watch", false, message(t, createRequest(create))); err != nil {
			t.Fatal(err)
		}
	}
	reader := openWatchStream(t, s.dial())
	send(t, reader, createRequest(create))
	for events := 0; events < keys; {
		events += len(receive(t, reader).Events)
	}
	grown := peakMemory(t, s) - before
	if grown > 200<<20 {
		t.Errorf("memory grew by up to %s; want at most 200 MiB", mib(grown))
	}
	t.Logf("%d deletions of 1 MiB read from history on %d connections that read nothing; memory grew by up to %s; %s", keys, connections, mib(grown), stop())
}

// TestHostileProgress requests progress notifications on a stream with many watches. A request must not
// cost work for each watch.
func TestHostileProgress(t *testing.T) {
	s := startMemEtcd(t, "--wal-mode", "none")
	watches, requests := scaled(150_000, 500_000), 4000
	stream := openWatchStream(t, s.dial())
	go func() {
		for range watches {
			if stream.Send(createRequest(&pb.WatchCreateRequest{Key: []byte("q")})) != nil {
				return
			}
		}
	}()
	for range watches {
		if created := receive(t, stream); created.Canceled {
			t.Fatalf("a watch was not created: %v", created)
		}
	}
	stop, before := bystander(t, s), cpuTime(t, s)
	go func() {
		for range requests {
			request := &pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}}
			if stream.Send(request) != nil {
				return
			}
		}
	}()
	for range requests {
		receive(t, stream)
	}
	if used := cpuTime(t, s) - before; used > 3*time.Second {
		t.Errorf("%d progress requests used %v of CPU; want at most 3 s", requests, used)
	}
	t.Logf("%d progress requests with %d watches; %s", requests, watches, stop())
}

// TestHostileLargeCommands queues many transactions whose compares read all keys. A put, and a large
// transaction of another connection, must wait only for a few of them.
func TestHostileLargeCommands(t *testing.T) {
	s := startMemEtcd(t, "--wal-mode", "none")
	fillKeys(t, s, scaled(20_000, 90_000), 10)
	connections, calls := scaled(4, 10), scaled(500, 2000)
	compare := &pb.Compare{
		Key: []byte("filled/"), RangeEnd: []byte("filled0"),
		Result: pb.Compare_GREATER, Target: pb.Compare_VERSION, TargetUnion: &pb.Compare_Version{},
	}
	put := &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte("put")}}}
	txn := &pb.TxnRequest{Compare: []*pb.Compare{compare}, Success: []*pb.RequestOp{put}}
	a, b := s.dial(), s.dial()
	mustPut(t, a, "before", "")
	mustPut(t, b, "before", "")
	var answers atomic.Int64
	for range connections {
		conn := dialRaw(t, s)
		go func() {
			for {
				frame, err := conn.ReadFrame()
				if err != nil {
					return
				}
				if headers, ok := frame.(*http2.HeadersFrame); ok && headers.StreamEnded() {
					answers.Add(1)
				}
			}
		}()
		for n := range calls {
			if err := conn.start(uint32(2*n+1), "/etcdserverpb.KV/Txn", true, message(t, txn)); err != nil {
				t.Fatal(err)
			}
		}
	}
	// Each of them is sent after the transactions, so all are in the queue or were executed.
	start, before := time.Now(), answers.Load()
	mustPut(t, a, "after", "")
	putTook, putAnswers := time.Since(start), answers.Load()-before
	start, before = time.Now(), answers.Load()
	if _, err := b.kv.Txn(t.Context(), txn); err != nil {
		t.Fatal(err)
	}
	txnTook, txnAnswers := time.Since(start), answers.Load()-before
	if all := int64(connections * calls); putAnswers > all/4 || txnAnswers > all/4 {
		t.Errorf("of %d transactions, %d were answered before a put and %d before another transaction; want at most a quarter each", all, putAnswers, txnAnswers)
	}
	t.Logf("%d transactions that compare all keys: a put waited for %d of them (%v), a large transaction of another connection for %d (%v)", connections*calls, putAnswers, putTook.Round(time.Millisecond), txnAnswers, txnTook.Round(time.Millisecond))
}

// TestHostileDeletion deletes many keys. Other clients must be able to read meanwhile. On a busy machine, a read may be slow for other
// reasons, but not each time.
func TestHostileDeletion(t *testing.T) {
	s := startMemEtcd(t, "--wal-mode", "none")
	keys := scaled(300_000, 2_000_000)
	const deletions = 5
	for range deletions {
		fillKeys(t, s, keys, 1)
		took, longest := deleteAll(t, s, keys)
		if longest <= took/2 {
			return
		}
	}
	t.Errorf("in each of %d deletions, a read took more than half of the time", deletions)
}

// deleteAll deletes keys and reads another key meanwhile. It returns how long the deletion and the longest read took.
func deleteAll(t *testing.T, s *server, keys int) (took, longest time.Duration) {
	t.Helper()
	a, done := s.dial(), make(chan error, 1)
	b := s.dial()
	mustPut(t, b, "other", "")
	start := time.Now()
	go func() {
		_, err := b.kv.DeleteRange(t.Context(), &pb.DeleteRangeRequest{Key: []byte("filled/"), RangeEnd: []byte("filled0")})
		done <- err
	}()
	for reads := 0; ; reads++ {
		select {
		case err := <-done:
			took = time.Since(start)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d keys deleted in %v, meanwhile %d reads, maximum %v", keys, took.Round(time.Millisecond), reads, longest.Round(time.Millisecond))
			return took, longest
		default:
		}
		read := time.Now()
		if _, err := a.kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("other")}); err != nil {
			t.Fatal(err)
		}
		longest = max(longest, time.Since(read))
	}
}
