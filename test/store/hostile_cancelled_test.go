package store

import (
	"io"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/net/http2"
)

// The tests in this file are clients that start slow calls, let some of them run, and then cancel all.
// Nothing of them may go on.

// slowCall is a call that takes long on a store with many keys.
type slowCall struct {
	path      string
	endStream bool
	message   []byte
}

// slowCalls returns the calls by what they do. The keys are those of fillKeys.
func slowCalls(t *testing.T) map[string]slowCall {
	t.Helper()
	all := func() *pb.RangeRequest {
		return &pb.RangeRequest{Key: []byte("filled/"), RangeEnd: []byte("filled0")}
	}
	ranges := func(count int) (ops []*pb.RequestOp) {
		for range count {
			ops = append(ops, &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: all()}})
		}
		return ops
	}
	put := &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte("put")}}}
	var compares []*pb.Compare
	for range 100 {
		compares = append(compares, &pb.Compare{
			Key: []byte("filled/"), RangeEnd: []byte("filled/00000900"),
			Result: pb.Compare_GREATER, Target: pb.Compare_VERSION, TargetUnion: &pb.Compare_Version{},
		})
	}
	sorted, counted, first := all(), all(), all()
	sorted.SortTarget, counted.CountOnly, first.Limit = pb.RangeRequest_VALUE, true, 1
	create := &pb.WatchCreateRequest{Key: []byte("other"), StartRevision: 2}
	watch := &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}}
	const kv, maintenance = "/etcdserverpb.KV/", "/etcdserverpb.Maintenance/"
	return map[string]slowCall{
		"ranges":       {kv + "Range", true, message(t, sorted)},
		"counts":       {kv + "RangeStream", true, message(t, counted)},
		"pages":        {kv + "RangeStream", true, message(t, first)},
		"transactions": {kv + "Txn", true, message(t, &pb.TxnRequest{Success: ranges(128)})},
		"writes":       {kv + "Txn", true, message(t, &pb.TxnRequest{Success: append(ranges(100), put)})},
		"compares": {kv + "Txn", true, message(t, &pb.TxnRequest{
			Compare: compares, Success: []*pb.RequestOp{put}, Failure: []*pb.RequestOp{put},
		})},
		"hashes":           {maintenance + "HashKV", true, message(t, &pb.HashKVRequest{})},
		"snapshots":        {maintenance + "Snapshot", true, message(t, &pb.SnapshotRequest{})},
		"defragmentations": {maintenance + "Defragment", true, message(t, &pb.DefragmentRequest{})},
		"histories":        {"/etcdserverpb.Watch/Watch", false, message(t, watch)},
	}
}

// TestHostileCancelledCalls starts thousands of slow calls on several connections and cancels them: one
// half by RST_STREAM, the other by closing the connection. The server must be idle soon.
func TestHostileCancelledCalls(t *testing.T) {
	s := startMemEtcd(t, "--wal-mode", "none")
	fillKeys(t, s, scaled(200_000, 1_000_000), 10)
	const connections = 8
	perConnection := scaled(250, 1000)
	for name, call := range slowCalls(t) {
		t.Run(name, func(t *testing.T) {
			var conns []*rawConn
			for range connections {
				conn := dialRaw(t, s)
				go func() { _, _ = io.Copy(io.Discard, conn.Conn) }()
				conns = append(conns, conn)
			}
			for n := range perConnection {
				for _, conn := range conns {
					if err := conn.start(uint32(2*n+1), call.path, call.endStream, call.message); err != nil {
						t.Fatal(err)
					}
				}
			}
			time.Sleep(200 * time.Millisecond)
			for i, conn := range conns {
				if i%2 == 0 {
					conn.Close()
					continue
				}
				for n := range perConnection {
					if err := conn.WriteRSTStream(uint32(2*n+1), http2.ErrCodeCancel); err != nil {
						t.Fatal(err)
					}
				}
			}
			t.Logf("%d calls cancelled; idle after %s", connections*perConnection, waitIdle(t, s))
		})
	}
}

// waitIdle waits until a server uses less than a tenth of one CPU. It may use 10 s of CPU time until then.
func waitIdle(t *testing.T, s *server) time.Duration {
	t.Helper()
	const window, limit = 300 * time.Millisecond, 10 * time.Second
	start, first := time.Now(), cpuTime(t, s)
	for before := first; ; {
		time.Sleep(window)
		now := cpuTime(t, s)
		if now-before < window/10 {
			return time.Since(start).Round(time.Millisecond)
		}
		if used := now - first; used > limit {
			t.Errorf("the server has used %v of CPU since all calls were cancelled, and is still busy", used.Round(time.Millisecond))
			return time.Since(start)
		}
		before = now
	}
}

// cpuTime returns the CPU time that a server has used.
func cpuTime(t *testing.T, s *server) time.Duration {
	t.Helper()
	process, err := procfs.NewProc(s.cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	stat, err := process.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(stat.CPUTime() * float64(time.Second))
}
