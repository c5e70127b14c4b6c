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

// The tests in this file are hostile clients. During each of them the server must keep
// running, bound its memory, and serve a well-behaved client (the bystander).
// `make hostile` runs them in full size and prints the measurements.

// scaled returns the first number in a short run, and the second in a full run.
func scaled(short, full int) int {
	if os.Getenv("HOSTILE") == "full" {
		return full
	}
	return short
}

// patience is the timeout of the bystander's requests. The hostile clients share the
// machine with the server.
const patience = 20 * time.Second

// bystander writes and reads, and fails the test if a request fails. The result is the
// number of requests and the longest latency.
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
			request, cancel := context.WithTimeout(context.Background(), patience)
			value := fmt.Appendf(nil, "%d", n)
			_, err := a.kv.Put(request, &pb.PutRequest{Key: []byte("bystander"), Value: value})
			var read *pb.RangeResponse
			if err == nil {
				read, err = a.kv.Range(request, &pb.RangeRequest{Key: []byte("bystander")})
			}
			cancel()
			if err != nil {
				t.Errorf("a bystander was not served: %v", err)
				return
			}
			if !bytes.Equal(read.Kvs[0].Value, value) {
				t.Errorf("a bystander read %q after it wrote %q", read.Kvs[0].Value, value)
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
			t.Error("the bystander was never served")
		}
		return fmt.Sprintf("bystander served %d times, at most %v", served.Load(), longest.Round(time.Millisecond))
	}
}

func resident(t *testing.T, s *server) int {
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

// rawConn sends and receives single HTTP/2 frames.
type rawConn struct {
	net.Conn
	*http2.Framer
	block bytes.Buffer
	hpack *hpack.Encoder
}

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

// call opens a stream for a method.
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

// until reads frames until one matches.
func (c *rawConn) until(t *testing.T, wanted func(http2.Frame) bool) http2.Frame {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	for {
		frame, err := c.ReadFrame()
		if err != nil {
			t.Fatalf("the expected frame was not received: %v", err)
		}
		if wanted(frame) {
			return frame
		}
	}
}

func grpcMessage(payload []byte) []byte {
	prefix := make([]byte, 5, 5+len(payload))
	bigendian.BigEndian.PutUint32(prefix[1:], uint32(len(payload)))
	return append(prefix, payload...)
}

// TestHostileRequests checks that invalid requests get the same errors as from etcd.
func TestHostileRequests(t *testing.T) {
	ours, etcd := startMemEtcd(t), startEtcd(t)
	stop := bystander(t, ours)
	ops := make([]*pb.RequestOp, 10_000)
	for i := range ops {
		put := &pb.PutRequest{Key: fmt.Appendf(nil, "key %d", i)}
		ops[i] = &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: put}}
	}
	zeros := []byte{0, 'a', 0, 0}
	type attempt func(context.Context, *api) (any, error)
	put := func(r *pb.PutRequest) attempt {
		return func(ctx context.Context, a *api) (any, error) { return a.kv.Put(ctx, r) }
	}
	read := func(r *pb.RangeRequest) attempt {
		return func(ctx context.Context, a *api) (any, error) { return a.kv.Range(ctx, r) }
	}
	attempts := map[string]attempt{
		"a value that is too large":          put(&pb.PutRequest{Key: zeros, Value: make([]byte, 1_600_000)}),
		"a message that is too large":        put(&pb.PutRequest{Key: zeros, Value: make([]byte, 3<<20)}),
		"a key of zeros":                     put(&pb.PutRequest{Key: zeros, PrevKv: true}),
		"no key":                             put(&pb.PutRequest{}),
		"a lease that is not there":          put(&pb.PutRequest{Key: zeros, Lease: -77}),
		"a transaction of 10,000":            func(ctx context.Context, a *api) (any, error) { return a.kv.Txn(ctx, &pb.TxnRequest{Success: ops}) },
		"a limit below zero":                 read(&pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, Limit: -5, KeysOnly: true}),
		"a revision below zero":              read(&pb.RangeRequest{Key: zeros, Revision: -9}),
		"the last revision there can be":     read(&pb.RangeRequest{Key: zeros, Revision: 1<<63 - 1}),
		"the first revision there can be":    read(&pb.RangeRequest{Key: zeros, Revision: -1 << 63}),
		"an order that does not exist":       read(&pb.RangeRequest{Key: zeros, SortOrder: 77}),
		"a range that ends before it begins": read(&pb.RangeRequest{Key: []byte("b"), RangeEnd: []byte("a")}),
		"a compaction of what is to come": func(ctx context.Context, a *api) (any, error) {
			return a.kv.Compact(ctx, &pb.CompactionRequest{Revision: 1 << 60})
		},
		"a compaction of what never was": func(ctx context.Context, a *api) (any, error) {
			return a.kv.Compact(ctx, &pb.CompactionRequest{Revision: -1 << 60})
		},
		"a lease for ever": func(ctx context.Context, a *api) (any, error) {
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

// TestHostileTxn checks that a large transaction succeeds if the limits allow it.
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
		t.Fatalf("%d responses, %v", len(response.GetResponses()), err)
	}
	t.Log(stop())
}

// TestHostileBytes checks that bytes that are not HTTP/2, gRPC or protobuf end only the
// connection or the call of their sender.
func TestHostileBytes(t *testing.T) {
	s := startMemEtcd(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	stop := bystander(t, s)
	noise := func(n int) []byte {
		bytes := make([]byte, n)
		for i := range bytes {
			bytes[i] = byte(random.Uint32())
		}
		return bytes
	}
	before := resident(t, s)
	connections := scaled(300, 20_000)
	for range connections {
		conn, err := net.Dial("tcp", s.address)
		if err != nil {
			t.Fatal(err)
		}
		var bytes []byte
		switch random.IntN(4) {
		case 0:
			bytes = noise(random.IntN(2000))
		case 1:
			bytes = append([]byte(http2.ClientPreface), noise(random.IntN(2000))...)
		case 2:
			bytes = append([]byte("GET /health HTTP/1.1\r\nHost: a\r\n"), noise(random.IntN(500))...)
		case 3:
			bytes = framesOf(random, noise)
		}
		// The server may close the connection before everything is sent.
		_, _ = conn.Write(bytes)
		conn.Close()
	}
	grown := resident(t, s) - before
	if grown > 256<<20 {
		t.Errorf("resident memory grew by %s", mib(grown))
	}
	t.Logf("%d connections of garbage; memory grew by %s; %s", connections, mib(grown), stop())
}

// framesOf returns a valid preface and well-formed frames with random contents.
func framesOf(random *rand.Rand, noise func(int) []byte) []byte {
	var buffer bytes.Buffer
	buffer.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&buffer, nil)
	framer.AllowIllegalWrites = true
	_ = framer.WriteSettings()
	for range random.IntN(20) {
		kind := http2.FrameType(random.IntN(11))
		stream := uint32(random.IntN(12))
		_ = framer.WriteRawFrame(kind, http2.Flags(random.IntN(256)), stream, noise(random.IntN(40)))
	}
	return buffer.Bytes()
}

// TestHostileProtobuf checks that messages that cannot be decoded end only their call.
func TestHostileProtobuf(t *testing.T) {
	s := startMemEtcd(t)
	conn := dialRaw(t, s)
	for i, path := range []string{"/etcdserverpb.KV/Put", "/etcdserverpb.KV/Txn", "/etcdserverpb.KV/Range", "/etcdserverpb.Lease/LeaseGrant", "/etcdserverpb.Watch/Watch"} {
		stream := uint32(2*i + 1)
		if err := conn.call(stream, path); err != nil {
			t.Fatal(err)
		}
		if err := conn.WriteData(stream, true, grpcMessage([]byte{0xff, 0xff, 0xff})); err != nil {
			t.Fatal(err)
		}
		frame := conn.until(t, func(frame http2.Frame) bool {
			return frame.Header().StreamID == stream && frame.Header().Flags.Has(http2.FlagDataEndStream)
		})
		fields, err := hpack.NewDecoder(4096, nil).DecodeFull(frame.(*http2.HeadersFrame).HeaderBlockFragment())
		if err != nil {
			t.Fatal(err)
		}
		if text := fmt.Sprint(fields); !strings.Contains(text, "error unmarshalling") || !strings.Contains(text, fmt.Sprint(int(codes.Internal))) {
			t.Errorf("%s: %s", path, text)
		}
	}
}

// TestHostileSilence checks that a connection that sends nothing, or only a part of the
// preface or TLS handshake, is closed.
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
		if err := conn.SetReadDeadline(start.Add(3 * patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("a silent connection was not closed")
		}
	}
	t.Logf("%d silent connections were closed after %v; %s", len(connections), time.Since(start).Round(time.Second), stop())
}

// TestHostileCrowd checks that idle connections need little memory.
func TestHostileCrowd(t *testing.T) {
	s := startMemEtcd(t)
	stop := bystander(t, s)
	before := resident(t, s)
	crowd := scaled(1000, 10_000)
	for range crowd {
		conn := dialRaw(t, s)
		conn.until(t, func(frame http2.Frame) bool {
			settings, ok := frame.(*http2.SettingsFrame)
			return ok && settings.IsAck()
		})
	}
	each := (resident(t, s) - before) / crowd
	if each > 32<<10 {
		t.Errorf("%d bytes for an idle connection", each)
	}
	t.Logf("%d idle connections, %d bytes each; %s", crowd, each, stop())
}

// TestHostileWatches checks that very many watches are created, notified and removed.
func TestHostileWatches(t *testing.T) {
	s := startMemEtcd(t)
	stop := bystander(t, s)
	const streams = 10
	watches := scaled(50_000, 1_000_000)
	before, start := resident(t, s), time.Now()
	var open [streams]watchStream
	for i := range open {
		open[i] = watching(t, s.dial())
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
				t.Fatalf("not created: %v", created)
			}
		}
	}
	took, each := time.Since(start), (resident(t, s)-before)/watches
	if each > 4096 {
		t.Errorf("%d bytes for a watch", each)
	}
	mustPut(t, s.dial(), "watched/7/5", "value")
	if event := receive(t, open[7]); event.WatchId != 6 || len(event.Events) != 1 {
		t.Errorf("unexpected response of the watch: %v", event)
	}
	t.Logf("%d watches created in %v, %d bytes each; %s", watches, took.Round(time.Millisecond), each, stop())
}

// TestHostileUnfinished checks that the memory of incomplete requests is bounded over all
// connections, and that requests beyond the bound are refused.
func TestHostileUnfinished(t *testing.T) {
	s := startMemEtcd(t)
	stop := bystander(t, s)
	before := resident(t, s)
	// The bound is 512 MiB, and the full run exceeds it.
	requests := scaled(50, 600)
	const size, frame = 1 << 20, 16_384
	for range requests / 10 {
		conn := dialRaw(t, s)
		for stream := uint32(1); stream < 20; stream += 2 {
			if err := conn.call(stream, "/etcdserverpb.KV/Put"); err != nil {
				t.Fatal(err)
			}
			data := grpcMessage(make([]byte, size))[:size-frame]
			for len(data) > 0 {
				part := data[:min(frame, len(data))]
				if err := conn.WriteData(stream, false, part); err != nil {
					t.Fatal(err)
				}
				data = data[len(part):]
			}
		}
	}
	grown := resident(t, s) - before
	if grown > 700<<20 {
		t.Errorf("resident memory grew by %s", mib(grown))
	}
	t.Logf("%d unfinished requests of 1 MiB; memory grew by %s; %s", requests, mib(grown), stop())
}

// TestHostilePings checks that a client that pings too often gets ENHANCE_YOUR_CALM, as
// from etcd.
func TestHostilePings(t *testing.T) {
	conn := dialRaw(t, startMemEtcd(t))
	for range 4 {
		if err := conn.WritePing(false, [8]byte{}); err != nil {
			t.Fatal(err)
		}
	}
	frame := conn.until(t, func(frame http2.Frame) bool { return frame.Header().Type == http2.FrameGoAway }).(*http2.GoAwayFrame)
	if frame.ErrCode != http2.ErrCodeEnhanceYourCalm || string(frame.DebugData()) != "too_many_pings" {
		t.Errorf("%v %q", frame.ErrCode, frame.DebugData())
	}
}

// TestHostileResets checks that calls that are reset immediately leave no memory in use.
func TestHostileResets(t *testing.T) {
	s := startMemEtcd(t)
	stop := bystander(t, s)
	before := resident(t, s)
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
	grown := resident(t, s) - before
	if grown > 128<<20 {
		t.Errorf("resident memory grew by %s", mib(grown))
	}
	t.Logf("%d streams opened and reset; memory grew by %s; %s", resets, mib(grown), stop())
}
