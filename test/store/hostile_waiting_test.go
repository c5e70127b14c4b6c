package store

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/net/http2"
	"google.golang.org/protobuf/proto"
)

// The tests in this file are hostile clients that make the server keep requests, streams, snapshots and
// heads of requests on many connections.

// grownMemory returns by how much the resident memory of a server exceeds before, once it no longer grows.
func grownMemory(t *testing.T, s *server, before int) int {
	t.Helper()
	grown := 0
	for quiet := 0; quiet < 10; quiet++ {
		time.Sleep(100 * time.Millisecond)
		if now := residentMemory(t, s) - before; now > grown+(1<<20) {
			grown, quiet = now, 0
		}
	}
	return grown
}

// checkGrown fails the test if the resident memory of a server exceeds before by more than limit.
func checkGrown(t *testing.T, s *server, before, limit int) int {
	t.Helper()
	grown := grownMemory(t, s, before)
	if grown > limit {
		t.Errorf("resident memory grew by %s; want at most %s", mib(grown), mib(limit))
	}
	return grown
}

// dialUnread starts ranges on streams 1, 3, … of a new connection whose client reads nothing of the responses.
func dialUnread(t *testing.T, s *server, calls int, request []byte) *rawConn {
	t.Helper()
	conn := dialRaw(t, s)
	if err := conn.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}); err != nil {
		t.Fatal(err)
	}
	for n := range calls {
		if err := conn.start(uint32(2*n+1), "/etcdserverpb.KV/Range", true, request); err != nil {
			t.Fatal(err)
		}
	}
	return conn
}

// TestHostileWaitingRequests sends ranges with a long key on connections whose client has left much
// unread, so that the calls wait. The requests of all connections share one budget.
func TestHostileWaitingRequests(t *testing.T) {
	s := startMemEtcd(t, "--wal-mode", "none")
	fillKeys(t, s, 100, 1_000_000)
	all := message(t, &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}})
	long := message(t, &pb.RangeRequest{Key: bytes.Repeat([]byte("k"), 16_000)})
	connections, calls := scaled(10, 40), scaled(500, 2050)
	stop := bystander(t, s)
	before := residentMemory(t, s)
	for range connections {
		conn := dialUnread(t, s, 2, all)
		time.Sleep(50 * time.Millisecond)
		for n := range calls {
			if err := conn.start(uint32(2*n+5), "/etcdserverpb.KV/Range", true, long); err != nil {
				t.Fatal(err)
			}
		}
	}
	// 512 MiB of requests, the guaranteed parts of the connections, and the connections themselves.
	grown := checkGrown(t, s, before, 1024<<20)
	t.Logf("%d connections with %d waiting requests of 16 kB each; memory grew by %s; %s", connections, calls, mib(grown), stop())
}

// TestHostileStreams opens streams and sends nothing more on them.
func TestHostileStreams(t *testing.T) {
	for path, request := range map[string]proto.Message{
		"/etcdserverpb.Watch/Watch":    nil,
		"/etcdserverpb.KV/Range":       nil,
		"/etcdserverpb.KV/Compact":     nil,
		"/grpc.health.v1.Health/Watch": &pb.StatusRequest{},
	} {
		t.Run(strings.ReplaceAll(path[1:], "/", "."), func(t *testing.T) {
			s := startMemEtcd(t, "--wal-mode", "none")
			connections, streams := scaled(2, 16), scaled(10_000, 65_000)
			stop := bystander(t, s)
			before := residentMemory(t, s)
			for range connections {
				conn := dialRaw(t, s)
				go func() { _, _ = io.Copy(io.Discard, conn.Conn) }()
				for n := range streams {
					var err error
					if request == nil {
						err = conn.call(uint32(2*n+1), path)
					} else {
						err = conn.start(uint32(2*n+1), path, true, message(t, request))
					}
					if err != nil {
						t.Fatal(err)
					}
				}
			}
			// 1 GiB of what calls keep, and the guaranteed parts of the connections.
			grown := checkGrown(t, s, before, 1500<<20)
			t.Logf("%d connections with %d streams each; memory grew by %s; %s", connections, streams, mib(grown), stop())
		})
	}
}

// TestHostileSnapshots starts snapshots of a store with many leases, and reads nothing of them.
func TestHostileSnapshots(t *testing.T) {
	s := startMemEtcd(t, "--wal-mode", "none")
	leases, calls := scaled(20_000, 300_000), 100
	var granted atomic.Int64
	var done sync.WaitGroup
	for range 32 {
		a := s.dial()
		done.Go(func() {
			for id := granted.Add(1); id <= int64(leases); id = granted.Add(1) {
				if _, err := a.lease.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: id, TTL: 10_000}); err != nil {
					t.Errorf("lease %d was not granted: %v", id, err)
					return
				}
			}
		})
	}
	done.Wait()
	stop := bystander(t, s)
	before := residentMemory(t, s)
	conn := dialRaw(t, s)
	if err := conn.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}); err != nil {
		t.Fatal(err)
	}
	for n := range calls {
		if err := conn.start(uint32(2*n+1), "/etcdserverpb.Maintenance/Snapshot", true, message(t, &pb.SnapshotRequest{})); err != nil {
			t.Fatal(err)
		}
	}
	// A connection may keep 512 MiB.
	grown := checkGrown(t, s, before, 768<<20)
	t.Logf("%d unread snapshots of a store with %d leases; memory grew by %s; %s", calls, leases, mib(grown), stop())
}

// TestHostileHeads sends incomplete and long heads of requests on HTTP/1.1.
func TestHostileHeads(t *testing.T) {
	s := startMemEtcd(t, "--wal-mode", "none")
	connections := scaled(200, 1500)
	stop := bystander(t, s)
	dial := func(head string) net.Conn {
		conn, err := net.Dial("tcp", s.address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		// The server may close the connection before it has read all of the head.
		_, _ = io.WriteString(conn, head)
		return conn
	}
	head := func(size int) string {
		return "GET /health HTTP/1.1\r\nHost: test\r\nX-Long: " + strings.Repeat("x", size)
	}
	before := residentMemory(t, s)
	slow := dial(head(10))
	start := time.Now()
	for range connections {
		dial(head(400_000))
	}
	grown := checkGrown(t, s, before, connections*48<<10+16<<20)

	long := dial(head(17_000) + "\r\n\r\n")
	if err := long.SetReadDeadline(time.Now().Add(requestTimeout)); err != nil {
		t.Fatal(err)
	}
	answer, _ := io.ReadAll(long)
	if len(answer) > 0 && !bytes.HasPrefix(answer, []byte("HTTP/1.1 431 ")) {
		t.Errorf("a head of 17 kB was answered with %q; want 431 or nothing", answer)
	}
	normal := dial(head(12_000) + "\r\nConnection: close\r\n\r\n")
	if answer, err := io.ReadAll(normal); err != nil || !bytes.HasPrefix(answer, []byte("HTTP/1.1 200 ")) {
		t.Errorf("a head of 12 kB was answered with %q and the error %v; want 200", answer, err)
	}
	if err := slow.SetReadDeadline(start.Add(startTimeout)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(slow); err != nil {
		t.Errorf("the connection with an incomplete head is not closed after %v: %v", time.Since(start), err)
	}
	waited := fmt.Sprintf("an incomplete head is closed after %v", time.Since(start).Round(100*time.Millisecond))
	t.Logf("%d incomplete heads of 400 kB; memory grew by %s; %s; %s", connections, mib(grown), waited, stop())
}
