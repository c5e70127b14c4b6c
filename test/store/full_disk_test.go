package store

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestFullDisk fills a small file system. Writes must fail with etcd's error for an exceeded quota, and reads
// must succeed. After the file system was enlarged, writes must succeed again. No acknowledged write may be
// lost.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system requires root")
	}
	dir := t.TempDir()
	mount := func(flags uintptr, size string) {
		t.Helper()
		if err := syscall.Mount("tmpfs", dir, "tmpfs", flags, "size="+size); err != nil {
			t.Fatal(err)
		}
	}
	mount(0, "150m")
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	s := startMemEtcd(t, "--wal-mode", "fsync", "--data-dir", filepath.Join(dir, "data"))
	a := s.dial()
	put := func(i int) error {
		request := &pb.PutRequest{Key: fmt.Appendf(nil, "key-%d", i), Value: make([]byte, 1<<20)}
		_, err := a.kv.Put(t.Context(), request)
		return err
	}
	grant, err := a.lease.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{TTL: 1000})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2000 {
		request := &pb.PutRequest{Key: fmt.Appendf(make([]byte, 1000), "leased-%d", i), Lease: grant.ID}
		if _, err := a.kv.Put(t.Context(), request); err != nil {
			t.Fatal(err)
		}
	}
	written := 0
	for ; err == nil && written < 1000; written++ {
		err = put(written)
	}
	if status.Code(err) != codes.ResourceExhausted || status.Convert(err).Message() != "etcdserver: mvcc: database space exceeded" {
		t.Fatalf("after %d puts of 1 MiB, a put returned the error %v; want that of an exceeded quota", written, err)
	}
	written--
	if got := get(t, a, fmt.Sprintf("key-%d", written-1)); len(got) != 1<<20 {
		t.Fatalf("a read on a full disk returned %d bytes; want 1 MiB", len(got))
	}
	expectAlarms(t, s, a, 1, http.StatusServiceUnavailable)

	// The revocation deletes 2,000 keys. It must fail completely.
	_, err = a.lease.LeaseRevoke(t.Context(), &pb.LeaseRevokeRequest{ID: grant.ID})
	if status.Code(err) != codes.ResourceExhausted {
		t.Fatalf("a revocation on a full disk returned the error %v; want RESOURCE_EXHAUSTED", err)
	}

	mount(syscall.MS_REMOUNT, "600m")
	if err := put(written); err != nil {
		t.Fatalf("a put after the file system was enlarged: %v", err)
	}
	expectAlarms(t, s, a, 0, http.StatusOK)
	if _, err := a.lease.LeaseRevoke(t.Context(), &pb.LeaseRevokeRequest{ID: grant.ID}); err != nil {
		t.Fatal(err)
	}
	s.kill()
	s.restart()
	a = s.dial()
	for i := range written + 1 {
		if got := get(t, a, fmt.Sprintf("key-%d", i)); len(got) != 1<<20 {
			t.Fatalf("key-%d, one of %d acknowledged keys, is missing", i, written+1)
		}
	}
	s.kill()
	<-time.After(50 * time.Millisecond) // until the kernel has closed the files, so that unmounting succeeds
}

// expectAlarms checks the number of alarms and the status code of /health.
func expectAlarms(t *testing.T, s *server, a *api, count, health int) {
	t.Helper()
	alarms, err := a.maintenance.Alarm(t.Context(), &pb.AlarmRequest{Action: pb.AlarmRequest_GET})
	if err != nil || len(alarms.Alarms) != count {
		t.Fatalf("the active alarms are %v, error %v; want %d", alarms, err, count)
	}
	response, err := http.Get("http://" + s.address + "/health")
	if err != nil || response.StatusCode != health {
		t.Fatalf("/health: %v, error %v; want status %d", response, err, health)
	}
	response.Body.Close()
}
