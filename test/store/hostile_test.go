package store

import (
	"bytes"
	"context"
	bigendian "encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The tests in this file are hostile clients. Meanwhile the server must keep running, use a bounded
// amount of memory, and serve a well-behaved client, the bystander. `make hostile` runs the tests in
// full size and prints the measurements.

// scaled returns full if HOSTILE is "full", otherwise short.
func scaled(short, full int) int {
	if os.Getenv("HOSTILE") == "full" {
		return full
	}
	return short
}

// requestTimeout is the timeout of a request. It is long because the hostile clients use the CPU of the
// machine on which the server runs.
const requestTimeout = time.Minute

// bystander starts a client that puts and reads a key repeatedly, and fails the test if a request fails.
// stop ends the client and returns the number of its put-and-read pairs and their maximum duration.
func bystander(t *testing.T, s *server) (stop func() string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	a := s.dial()
	var done sync.WaitGroup
	var served atomic.Int64
	var longest time.Duration
	done.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			start := time.Now()
			request, cancel := context.WithTimeout(context.Background(), requestTimeout)
			value := fmt.Appendf(nil, "%d", n)
			_, err := a.kv.Put(request, &pb.PutRequest{Key: []byte("bystander"), Value: value})
			var read *pb.RangeResponse
			if err == nil {
				read, err = a.kv.Range(request, &pb.RangeRequest{Key: []byte("bystander")})
			}
			cancel()
			if err != nil {
				t.Errorf("a request of the bystander failed: %v", err)
				return
			}
			if !bytes.Equal(read.Kvs[0].Value, value) {
				t.Errorf("the bystander read %q after it had put %q", read.Kvs[0].Value, value)
			}
			longest = max(longest, time.Since(start))
			served.Add(1)
			time.Sleep(time.Millisecond)
		}
	})
	return func() string {
		cancel()
		done.Wait()
		if served.Load() == 0 && !t.Failed() {
			t.Error("no request of the bystander was completed")
		}
		return fmt.Sprintf("%d puts and reads of the bystander, maximum duration of both %v", served.Load(), longest.Round(time.Millisecond))
	}
}

// residentMemory returns the resident memory of a server in bytes.
func residentMemory(t *testing.T, s *server) int {
	t.Helper()
	process, err := procfs.NewProc(s.cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	stat, err := process.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return stat.ResidentMemory()
}

func mib(bytes int) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }

// rawConn is a connection that sends and receives single HTTP/2 frames.
type rawConn struct {
	net.Conn
	*http2.Framer
	// block contains the header block that hpack has encoded.
	block bytes.Buffer
	hpack *hpack.Encoder
}

// dialRaw opens a connection and sends the preface and an empty SETTINGS frame.
func dialRaw(t *testing.T, s *server) *rawConn {
	t.Helper()
	conn, err := net.Dial("tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	c := &rawConn{Conn: conn, Framer: http2.NewFramer(conn, conn)}
	c.hpack = hpack.NewEncoder(&c.block)
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := c.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return c
}

// call sends the request headers of a method on a new stream.
func (c *rawConn) call(stream uint32, path string) error {
	c.block.Reset()
	for _, field := range []hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: path},
		{Name: ":authority", Value: "test"}, {Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
	} {
		if err := c.hpack.WriteField(field); err != nil {
			return err
		}
	}
	return c.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: c.block.Bytes(), EndHeaders: true})
}

// readUntil reads frames until matches returns true for one, and returns this frame.
func (c *rawConn) readUntil(t *testing.T, matches func(http2.Frame) bool) http2.Frame {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(requestTimeout)); err != nil {
		t.Fatal(err)
	}
	for {
		frame, err := c.ReadFrame()
		if err != nil {
			t.Fatalf("the expected frame was not received: %v", err)
		}
		if matches(frame) {
			return frame
		}
	}
}

// withPrefix returns a message with gRPC's prefix of 5 bytes.
func withPrefix(payload []byte) []byte {
	prefix := make([]byte, 5, 5+len(payload))
	bigendian.BigEndian.PutUint32(prefix[1:], uint32(len(payload)))
	return append(prefix, payload...)
}

// TestHostileRequests checks that mem_etcd rejects invalid requests with the same errors as etcd.
func TestHostileRequests(t *testing.T) {
	ours, etcd := startMemEtcd(t), startEtcd(t)
	stop := bystander(t, ours)
	ops := make([]*pb.RequestOp, 10_000)
	for i := range ops {
		put := &pb.PutRequest{Key: fmt.Appendf(nil, "key %d", i)}
		ops[i] = &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: put}}
	}
	key := []byte{0, 'a', 0, 0}
	type attempt func(context.Context, *api) (any, error)
	put := func(r *pb.PutRequest) attempt {
		return func(ctx context.Context, a *api) (any, error) { return a.kv.Put(ctx, r) }
	}
	read := func(r *pb.RangeRequest) attempt {
		return func(ctx context.Context, a *api) (any, error) { return a.kv.Range(ctx, r) }
	}
	attempts := map[string]attempt{
		"value too large":           put(&pb.PutRequest{Key: key, Value: make([]byte, 1_600_000)}),
		"message too large":         put(&pb.PutRequest{Key: key, Value: make([]byte, 3<<20)}),
		"key with zero bytes":       put(&pb.PutRequest{Key: key, PrevKv: true}),
		"no key":                    put(&pb.PutRequest{}),
		"lease that does not exist": put(&pb.PutRequest{Key: key, Lease: -77}),
		"10,000 operations":         func(ctx context.Context, a *api) (any, error) { return a.kv.Txn(ctx, &pb.TxnRequest{Success: ops}) },
		"negative limit":            read(&pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, Limit: -5, KeysOnly: true}),
		"negative revision":         read(&pb.RangeRequest{Key: key, Revision: -9}),
		"maximum int64 as revision": read(&pb.RangeRequest{Key: key, Revision: 1<<63 - 1}),
		"minimum int64 as revision": read(&pb.RangeRequest{Key: key, Revision: -1 << 63}),
		"unknown sort order":        read(&pb.RangeRequest{Key: key, SortOrder: 77}),
		"range end before the key":  read(&pb.RangeRequest{Key: []byte("b"), RangeEnd: []byte("a")}),
		"compaction of a future revision": func(ctx context.Context, a *api) (any, error) {
			return a.kv.Compact(ctx, &pb.CompactionRequest{Revision: 1 << 60})
		},
		"compaction of a negative revision": func(ctx context.Context, a *api) (any, error) {
			return a.kv.Compact(ctx, &pb.CompactionRequest{Revision: -1 << 60})
		},
		"maximum int64 as TTL": func(ctx context.Context, a *api) (any, error) {
			return a.lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: 1<<63 - 1})
		},
	}
	a, b := ours.dial(), etcd.dial()
	for name, attempt := range attempts {
		_, ourErr := attempt(t.Context(), a)
		_, etcdErr := attempt(t.Context(), b)
		if status.Code(ourErr) != status.Code(etcdErr) || status.Convert(ourErr).Message() != status.Convert(etcdErr).Message() {
			t.Errorf("%s:\n  mem_etcd: %v\n  etcd:     %v", name, ourErr, etcdErr)
		}
	}
	t.Log(stop())
}

// TestHostileTxn checks that a transaction with 10,000 operations succeeds if --max-txn-ops allows it.
func TestHostileTxn(t *testing.T) {
	s := startMemEtcd(t, "--max-txn-ops", "10000")
	stop := bystander(t, s)
	request := &pb.TxnRequest{}
	for i := range 10_000 {
		put := &pb.PutRequest{Key: fmt.Appendf(nil, "key %d", i)}
		request.Success = append(request.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: put}})
	}
	response, err := s.dial().kv.Txn(t.Context(), request)
	if err != nil || len(response.Responses) != 10_000 {
		t.Fatalf("the transaction returned %d responses and the error %v; want 10000 responses", len(response.GetResponses()), err)
	}
	t.Log(stop())
}

// TestHostileBytes sends random bytes, random bytes after a valid start, and random frames. The server
// must serve the bystander, and its memory must not grow.
func TestHostileBytes(t *testing.T) {
	s := startMemEtcd(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	stop := bystander(t, s)
	randomBytes := func(n int) []byte {
		bytes := make([]byte, n)
		for i := range bytes {
			bytes[i] = byte(random.Uint32())
		}
		return bytes
	}
	before := residentMemory(t, s)
	connections := scaled(300, 20_000)
	for range connections {
		conn, err := net.Dial("tcp", s.address)
		if err != nil {
			t.Fatal(err)
		}
		var bytes []byte
		switch random.IntN(4) {
		case 0:
			bytes = randomBytes(random.IntN(2000))
		case 1:
			bytes = append([]byte(http2.ClientPreface), randomBytes(random.IntN(2000))...)
		case 2:
			bytes = append([]byte("GET /health HTTP/1.1\r\nHost: a\r\n"), randomBytes(random.IntN(500))...)
		case 3:
			bytes = randomFrames(random, randomBytes)
		}
		// The server may close the connection before everything is sent.
		_, _ = conn.Write(bytes)
		conn.Close()
	}
	grown := residentMemory(t, s) - before
	if grown > 256<<20 {
		t.Errorf("resident memory grew by %s; want at most 256 MiB", mib(grown))
	}
	t.Logf("%d connections with random bytes; memory grew by %s; %s", connections, mib(grown), stop())
}

// randomFrames returns a valid preface and frames with random types, flags, streams and payloads.
func randomFrames(random *rand.Rand, randomBytes func(int) []byte) []byte {
	var buffer bytes.Buffer
	buffer.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&buffer, nil)
	framer.AllowIllegalWrites = true
	_ = framer.WriteSettings()
	for range random.IntN(20) {
		kind := http2.FrameType(random.IntN(11))
		stream := uint32(random.IntN(12))
		_ = framer.WriteRawFrame(kind, http2.Flags(random.IntN(256)), stream, randomBytes(random.IntN(40)))
	}
	return buffer.Bytes()
}

// TestHostileProtobuf checks that a call fails with INTERNAL if its message cannot be decoded, and that
// the connection stays open.
func TestHostileProtobuf(t *testing.T) {
	s := startMemEtcd(t)
	conn := dialRaw(t, s)
	for i, path := range []string{"/etcdserverpb.KV/Put", "/etcdserverpb.KV/Txn", "/etcdserverpb.KV/Range", "/etcdserverpb.Lease/LeaseGrant", "/etcdserverpb.Watch/Watch"} {
		stream := uint32(2*i + 1)
		if err := conn.call(stream, path); err != nil {
			t.Fatal(err)
		}
		if err := conn.WriteData(stream, true, withPrefix([]byte{0xff, 0xff, 0xff})); err != nil {
			t.Fatal(err)
		}
		frame := conn.readUntil(t, func(frame http2.Frame) bool {
			return frame.Header().StreamID == stream && frame.Header().Flags.Has(http2.FlagDataEndStream)
		})
		fields, err := hpack.NewDecoder(4096, nil).DecodeFull(frame.(*http2.HeadersFrame).HeaderBlockFragment())
		if err != nil {
			t.Fatal(err)
		}
		if text := fmt.Sprint(fields); !strings.Contains(text, "error unmarshalling") || !strings.Contains(text, fmt.Sprint(int(codes.Internal))) {
			t.Errorf("%s with an invalid message: trailers %s; want an unmarshalling error with code INTERNAL", path, text)
		}
	}
}

// TestHostileSilence checks that the server closes connections that send nothing or only a part of the
// HTTP/2 preface.
func TestHostileSilence(t *testing.T) {
	s := startMemEtcd(t)
	stop := bystander(t, s)
	var connections []net.Conn
	for i := range scaled(200, 5000) {
		conn, err := net.Dial("tcp", s.address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, http2.ClientPreface[:i%20]); err != nil {
			t.Fatal(err)
		}
		connections = append(connections, conn)
	}
	start := time.Now()
	for _, conn := range connections {
		if err := conn.SetReadDeadline(start.Add(3 * requestTimeout)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("an idle connection without a complete preface was not closed within %v", 3*requestTimeout)
		}
	}
	t.Logf("%d connections without a complete preface were closed after %v; %s", len(connections), time.Since(start).Round(time.Second), stop())
}

// TestHostileCrowd checks that idle connections use at most 32 KiB of memory each.
func TestHostileCrowd(t *testing.T) {
	s := startMemEtcd(t)
	stop := bystander(t, s)
	before := residentMemory(t, s)
	connections := scaled(1000, 10_000)
	for range connections {
		conn := dialRaw(t, s)
		conn.readUntil(t, func(frame http2.Frame) bool {
			settings, ok := frame.(*http2.SettingsFrame)
			return ok && settings.IsAck()
		})
	}
	each := (residentMemory(t, s) - before) / connections
	if each > 32<<10 {
		t.Errorf("an idle connection uses %d bytes; want at most %d", each, 32<<10)
	}
	t.Logf("%d idle connections, %d bytes each; %s", connections, each, stop())
}

// TestHostileWatches creates 50,000 watches, or 1,000,000 in a full run. Each may use at most 4 KiB of
// memory, and an event must reach its watch.
func TestHostileWatches(t *testing.T) {
	s := startMemEtcd(t)
	stop := bystander(t, s)
	const streams = 10
	watches := scaled(50_000, 1_000_000)
	before, start := residentMemory(t, s), time.Now()
	var open [streams]watchStream
	for i := range open {
		open[i] = openWatchStream(t, s.dial())
		go func(stream watchStream) {
			for n := range watches / streams {
				create := &pb.WatchCreateRequest{Key: fmt.Appendf(nil, "watched/%d/%d", i, n), WatchId: int64(n + 1)}
				if stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}}) != nil {
					return
				}
			}
		}(open[i])
	}
	for _, stream := range open {
		for range watches / streams {
			if created := receive(t, stream); !created.Created || created.Canceled {
				t.Fatalf("a watch was not created: %v", created)
			}
		}
	}
	took, each := time.Since(start), (residentMemory(t, s)-before)/watches
	if each > 4096 {
		t.Errorf("a watch uses %d bytes; want at most 4096", each)
	}
	mustPut(t, s.dial(), "watched/7/5", "value")
	if event := receive(t, open[7]); event.WatchId != 6 || len(event.Events) != 1 {
		t.Errorf("the watch received %v; want one event with watch ID 6", event)
	}
	t.Logf("%d watches created in %v, %d bytes each; %s", watches, took.Round(time.Millisecond), each, stop())
}

// TestHostileUnfinished sends incomplete requests of 1 MiB. The memory that they use in all connections
// together must be bounded.
func TestHostileUnfinished(t *testing.T) {
	s := startMemEtcd(t)
	stop := bystander(t, s)
	before := residentMemory(t, s)
	// The budget for incomplete messages is 512 MiB. The full run exceeds it.
	requests := scaled(50, 600)
	const size, frame = 1 << 20, 16_384
	for range requests / 10 {
		conn := dialRaw(t, s)
		for stream := uint32(1); stream < 20; stream += 2 {
			if err := conn.call(stream, "/etcdserverpb.KV/Put"); err != nil {
				t.Fatal(err)
			}
			data := withPrefix(make([]byte, size))[:size-frame]
			for len(data) > 0 {
				part := data[:min(frame, len(data))]
				if err := conn.WriteData(stream, false, part); err != nil {
					t.Fatal(err)
				}
				data = data[len(part):]
			}
		}
	}
	grown := residentMemory(t, s) - before
	if grown > 700<<20 {
		t.Errorf("resident memory grew by %s; want at most 700 MiB", mib(grown))
	}
	t.Logf("%d incomplete requests of 1 MiB; memory grew by %s; %s", requests, mib(grown), stop())
}

// TestHostilePings checks that a client that sends too many pings gets a GOAWAY with ENHANCE_YOUR_CALM,
// as from etcd.
func TestHostilePings(t *testing.T) {
	conn := dialRaw(t, startMemEtcd(t))
	for range 4 {
		if err := conn.WritePing(false, [8]byte{}); err != nil {
			t.Fatal(err)
		}
	}
	frame := conn.readUntil(t, func(frame http2.Frame) bool { return frame.Header().Type == http2.FrameGoAway }).(*http2.GoAwayFrame)
	if frame.ErrCode != http2.ErrCodeEnhanceYourCalm || string(frame.DebugData()) != "too_many_pings" {
		t.Errorf("GOAWAY with %v and the debug data %q; want ENHANCE_YOUR_CALM and too_many_pings", frame.ErrCode, frame.DebugData())
	}
}

// TestHostileResets opens streams and resets them immediately. The memory must not grow by more than
// 128 MiB.
func TestHostileResets(t *testing.T) {
	s := startMemEtcd(t)
	stop := bystander(t, s)
	before := residentMemory(t, s)
	conn := dialRaw(t, s)
	go func() { _, _ = io.Copy(io.Discard, conn.Conn) }()
	resets := scaled(20_000, 1_000_000)
	for i := range resets {
		stream := uint32(2*i + 1)
		if err := conn.call(stream, "/etcdserverpb.Watch/Watch"); err != nil {
			t.Fatal(err)
		}
		if err := conn.WriteRSTStream(stream, http2.ErrCodeCancel); err != nil {
			t.Fatal(err)
		}
	}
	grown := residentMemory(t, s) - before
	if grown > 128<<20 {
		t.Errorf("resident memory grew by %s; want at most 128 MiB", mib(grown))
	}
	t.Logf("%d streams opened and reset; memory grew by %s; %s", resets, mib(grown), stop())
}
