package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/net/http2"
	"google.golang.org/protobuf/proto"
)

// The tests in this file are hostile clients that start much work and do not read the answers, or do
// not wait for them.

// fillKeys puts count keys with values of size bytes each, and returns the revision.
func fillKeys(t *testing.T, s *server, count, size int) int64 {
	t.Helper()
	a := s.dial()
	value := bytes.Repeat([]byte("v"), size)
	perTxn := min(100, max(1, (1<<20)/(size+100)))
	var revision int64
	for n := 0; n < count; n += perTxn {
		request := &pb.TxnRequest{}
		for i := n; i < min(n+perTxn, count); i++ {
			put := &pb.PutRequest{Key: fmt.Appendf(nil, "filled/%08d", i), Value: value}
			request.Success = append(request.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: put}})
		}
		response, err := a.kv.Txn(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		revision = response.Header.Revision
	}
	return revision
}

// message encodes a request with gRPC's prefix.
func message(t *testing.T, request proto.Message) []byte {
	t.Helper()
	encoded, err := proto.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	return withPrefix(encoded)
}

// start sends the request headers of a method and one message. endStream is whether it is the last one.
func (c *rawConn) start(stream uint32, path string, endStream bool, message []byte) error {
	if err := c.call(stream, path); err != nil {
		return err
	}
	return c.WriteData(stream, endStream, message)
}

// checkUnread opens streams with the same request, which the client does not read, and checks that the
// memory of the server grows by at most 256 MiB.
func checkUnread(t *testing.T, s *server, streams int, path string, endStream bool, message []byte) {
	t.Helper()
	checkUnreadRequests(t, s, path, endStream, slices.Repeat([][]byte{message}, streams))
}

// checkUnreadRequests does the same with a stream for each request.
func checkUnreadRequests(t *testing.T, s *server, path string, endStream bool, requests [][]byte) {
	t.Helper()
	streams := len(requests)
	stop := bystander(t, s)
	before := residentMemory(t, s)
	conn := dialRaw(t, s)
	for n, request := range requests {
		if err := conn.start(uint32(2*n+1), path, endStream, request); err != nil {
			t.Fatal(err)
		}
	}
	// The server has produced all that it wants to when its memory no longer grows.
	grown := 0
	for quiet := 0; quiet < 10; quiet++ {
		time.Sleep(100 * time.Millisecond)
		if now := residentMemory(t, s) - before; now > grown+(1<<20) {
			grown, quiet = now, 0
		}
	}
	if grown > 256<<20 {
		t.Errorf("resident memory grew by %s for %d streams; want at most 256 MiB", mib(grown), streams)
	}
	t.Logf("%d unread streams of %s; memory grew by %s; %s", streams, path, mib(grown), stop())
}

// TestHostileRangeStreams opens 1,800 range streams on one connection. Each could hold a page of 1 MiB.
func TestHostileRangeStreams(t *testing.T) {
	s := startMemEtcd(t)
	fillKeys(t, s, 1000, 16<<10)
	request := &pb.RangeRequest{Key: []byte("filled/"), RangeEnd: []byte("filled0")}
	checkUnread(t, s, 1800, "/etcdserverpb.KV/RangeStream", true, message(t, request))
}

// TestHostileRanges does the same with ranges that are not streamed. Their responses have 16 MiB each.
func TestHostileRanges(t *testing.T) {
	s := startMemEtcd(t)
	fillKeys(t, s, 1000, 16<<10)
	request := &pb.RangeRequest{Key: []byte("filled/"), RangeEnd: []byte("filled0")}
	checkUnread(t, s, 1800, "/etcdserverpb.KV/Range", true, message(t, request))
}

// TestHostileTxnRanges sends transactions that write, and read a value of 1.4 MB. All of them are queued
// before the first one has an answer.
func TestHostileTxnRanges(t *testing.T) {
	s := startMemEtcd(t)
	mustPut(t, s.dial(), "large", strings.Repeat("v", 1_400_000))
	put := &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte("small")}}
	get := &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte("large")}}
	request := &pb.TxnRequest{Success: []*pb.RequestOp{{Request: put}, {Request: get}}}
	checkUnread(t, s, 1800, "/etcdserverpb.KV/Txn", true, message(t, request))
}

// TestHostilePreviousValues deletes keys with values of 700 kB, and asks for the values.
func TestHostilePreviousValues(t *testing.T) {
	s := startMemEtcd(t)
	a := s.dial()
	var deletes [][]byte
	for n := range 800 {
		key := fmt.Sprintf("large/%d", n)
		mustPut(t, a, key, strings.Repeat("v", 700_000))
		deletes = append(deletes, message(t, &pb.DeleteRangeRequest{Key: []byte(key), PrevKv: true}))
	}
	checkUnreadRequests(t, s, "/etcdserverpb.KV/DeleteRange", true, deletes)
}

// TestHostileHistory opens watch streams that read history. Each could hold 4 MiB of events.
func TestHostileHistory(t *testing.T) {
	s := startMemEtcd(t)
	fillKeys(t, s, 1000, 8<<10)
	create := &pb.WatchCreateRequest{Key: []byte("filled/"), RangeEnd: []byte("filled0"), StartRevision: 2}
	request := &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}}
	checkUnread(t, s, scaled(600, 6000), "/etcdserverpb.Watch/Watch", false, message(t, request))
}

// TestHostileRangeResets starts ranges over 100,000 keys and resets them immediately. They must not go
// on: a compaction, which waits for ranges in progress, must return within requestTimeout. All of them take longer.
func TestHostileRangeResets(t *testing.T) {
	s := startMemEtcd(t)
	revision := fillKeys(t, s, 100_000, 10)
	stop := bystander(t, s)
	conn := dialRaw(t, s)
	go func() { _, _ = io.Copy(io.Discard, conn.Conn) }()
	request := message(t, &pb.RangeRequest{Key: []byte("filled/"), RangeEnd: []byte("filled0")})
	resets := scaled(20_000, 100_000)
	for n := range resets {
		stream := uint32(2*n + 1)
		if err := conn.start(stream, "/etcdserverpb.KV/Range", true, request); err != nil {
			t.Fatal(err)
		}
		if err := conn.WriteRSTStream(stream, http2.ErrCodeCancel); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), requestTimeout)
	defer cancel()
	start := time.Now()
	// The ranges that were started have pinned this revision or a later one.
	mustPut(t, s.dial(), "filled/00000000", "new")
	if _, err := s.dial().kv.Compact(ctx, &pb.CompactionRequest{Revision: revision + 1, Physical: true}); err != nil {
		t.Errorf("the compaction failed after %v: %v", time.Since(start), err)
	}
	t.Logf("%d ranges started and reset, then a compaction in %v; %s", resets, time.Since(start).Round(time.Millisecond), stop())
}

// TestHostilePinnedValues starts calls on connections that read nothing, each with a response that has values
// which are then deleted or overwritten, and compacted. Only a bounded part of them may stay in memory, and the
// oldest call is reset.
func TestHostilePinnedValues(t *testing.T) {
	const keys = 64
	all := &pb.DeleteRangeRequest{Key: []byte("filled/"), RangeEnd: []byte("filled0")}
	overwrite := &pb.TxnRequest{}
	for n := range keys {
		put := &pb.PutRequest{Key: fmt.Appendf(nil, "filled/%08d", n), PrevKv: true}
		overwrite.Success = append(overwrite.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: put}})
	}
	for _, call := range []struct {
		name, path string
		request    proto.Message
	}{
		{"range", "/etcdserverpb.KV/Range", &pb.RangeRequest{Key: all.Key, RangeEnd: all.RangeEnd}},
		{"previous values of puts", "/etcdserverpb.KV/Txn", overwrite},
	} {
		t.Run(call.name, func(t *testing.T) {
			s := startMemEtcd(t, "--wal-mode", "none", "--quota-backend-bytes", "200000000")
			pinValues(t, s, keys, call.path, message(t, call.request), all)
		})
	}
}

// pinValues starts calls whose responses have keys values of 1 MiB, and then deletes all of them.
func pinValues(t *testing.T, s *server, keys int, path string, request []byte, all *pb.DeleteRangeRequest) {
	a := s.dial()
	const limit = 800 << 20
	stop, before := bystander(t, s), residentMemory(t, s)
	var first, last *rawConn
	rounds := scaled(20, 60)
	for range rounds {
		fillKeys(t, s, keys, 1<<20)
		last = dialRaw(t, s)
		if first == nil {
			first = last
		}
		if err := last.start(1, path, true, request); err != nil {
			t.Fatal(err)
		}
		last.readUntil(t, func(frame http2.Frame) bool { return frame.Header().Type == http2.FrameData })
		deleted, err := a.kv.DeleteRange(t.Context(), all)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.kv.Compact(t.Context(), &pb.CompactionRequest{Revision: deleted.Header.Revision, Physical: true}); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(200 * time.Millisecond)
	grown := residentMemory(t, s) - before
	if grown > limit {
		t.Errorf("resident memory grew by %s; want at most %s", mib(grown), mib(limit))
	}
	t.Logf("%d unread responses of %d MiB that were deleted; memory grew by %s; %s", rounds, keys, mib(grown), stop())
	// If this took more than 5 s, the server may have closed the whole connection: its client reads nothing, and memory is scarce.
	if received, reset := first.readBody(t, 1); reset != http2.ErrCodeEnhanceYourCalm || received >= keys<<20 {
		t.Errorf("the first call got %d bytes and the reset %v; want less than %d and ENHANCE_YOUR_CALM", received, reset, keys<<20)
	}
	if received, reset := last.readBody(t, 1); reset != 0 || received < keys<<20-1<<16 {
		t.Errorf("the last call got %d bytes and the reset %v; want all bytes", received, reset)
	}
}

// readBody opens the windows and reads the rest of a response. It returns the number of bytes, and the error
// code if the stream was reset or the connection was closed.
func (c *rawConn) readBody(t *testing.T, stream uint32) (received int, reset http2.ErrCode) {
	t.Helper()
	for _, id := range []uint32{0, stream} {
		if err := c.WriteWindowUpdate(id, 1<<30); errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
			return 0, http2.ErrCodeEnhanceYourCalm // the GOAWAY frame with the code is lost
		} else if err != nil {
			t.Fatal(err)
		}
	}
	c.readUntil(t, func(frame http2.Frame) bool {
		switch frame := frame.(type) {
		case *http2.GoAwayFrame:
			reset = frame.ErrCode
			return true
		case *http2.DataFrame:
			received += len(frame.Data())
		case *http2.HeadersFrame:
			return frame.StreamEnded()
		case *http2.RSTStreamFrame:
			reset = frame.ErrCode
			return true
		}
		return false
	})
	return received, reset
}
