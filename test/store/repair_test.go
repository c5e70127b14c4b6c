package store

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// TestCheckAndRepair damages a log. `mem_etcd check` must report the file and the offset. `mem_etcd repair`
// must print what it would do, and do it with --yes. Afterwards the store must continue above all published
// revisions.
func TestCheckAndRepair(t *testing.T) {
	s := startMemEtcd(t, "--wal-mode", "fsync")
	a := s.dial()
	data := s.args[1]
	var revision int64
	for range 10 {
		revision = mustPut(t, a, "key", "value")
	}
	if output, code := subcommand(t, "check", "--data-dir", data); code != 1 || !strings.Contains(output, "is in use by another process") {
		t.Fatalf("check while the server runs: exit code %d, output %s", code, output)
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	output, code := subcommand(t, "check", "--data-dir", data)
	for _, expected := range []string{"revision   11, never compacted", "keys       1, ", "snapshot   none", "no damage found"} {
		if code != 0 || !strings.Contains(output, expected) {
			t.Fatalf("check of an intact log: exit code %d, output %s; want %q", code, output, expected)
		}
	}
	if output, code := subcommand(t, "repair", "--data-dir", data, "--yes"); code != 0 || !strings.Contains(output, "nothing to do") {
		t.Fatalf("repair of an intact log: exit code %d, output %s", code, output)
	}

	segment := filepath.Join(data, "wal", "00000000000000000001.wal")
	content, err := os.ReadFile(segment)
	if err != nil {
		t.Fatal(err)
	}
	content[bytes.LastIndex(content, []byte("value"))] ^= 1
	mustWrite(t, segment, string(content))
	for _, args := range [][]string{{"check", "--data-dir", data}, {"--data-dir", data, "--log-level", "error"}} {
		output, code = subcommand(t, args...)
		if code != 1 || !strings.Contains(output, filepath.Base(segment)+" is corrupt at offset") || !strings.Contains(output, "mem_etcd repair") {
			t.Fatalf("mem_etcd %v with a damaged log: exit code %d, output %s", args, code, output)
		}
	}
	output, code = subcommand(t, "repair", "--data-dir", data)
	if code != 1 || !strings.Contains(output, "kept       1 keys, up to revision 10") || !strings.Contains(output, "repeat with --yes") {
		t.Fatalf("repair without --yes: exit code %d, output %s", code, output)
	}
	output, code = subcommand(t, "repair", "--data-dir", data, "--yes")
	if code != 0 || !strings.Contains(output, "set aside  "+filepath.Join(data, "wal.damaged")) {
		t.Fatalf("repair with --yes: exit code %d, output %s", code, output)
	}
	kept, err := os.ReadFile(filepath.Join(data, "wal.damaged", filepath.Base(segment)))
	if err != nil || !bytes.Equal(kept, content) {
		t.Fatalf("the damaged log was not kept: %v", err)
	}

	s.restart()
	a = s.dial()
	if get(t, a, "key") != "value" || mustPut(t, a, "key", "new") <= revision {
		t.Fatal("the repaired store lost the key, or does not continue above the published revisions")
	}
	w := newWriters(noKey)
	w.revision = revision
	w.verifyCompactionError(t, a, 0)
}

// TestLeasesKeepTheirTTL checks that a renewed lease and one that was not renewed keep their remaining TTLs
// over a restart.
func TestLeasesKeepTheirTTL(t *testing.T) {
	s := startMemEtcd(t)
	a := s.dial()
	granted := time.Now()
	for _, id := range []int64{1, 2} {
		if _, err := a.lease.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: id, TTL: 100}); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(3500 * time.Millisecond)
	stream, err := a.lease.LeaseKeepAlive(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: 2}); err != nil {
		t.Fatal(err)
	}
	if response, err := stream.Recv(); err != nil || response.TTL != 100 {
		t.Fatalf("renewal of a lease: %v, error %v; want a TTL of 100 s", response, err)
	}
	s.kill()
	time.Sleep(2 * time.Second)
	s.restart()
	a = s.dial()
	remainingTTL := func(id int64) int64 {
		response, err := a.lease.LeaseTimeToLive(t.Context(), &pb.LeaseTimeToLiveRequest{ID: id})
		if err != nil {
			t.Fatal(err)
		}
		return response.TTL
	}
	// Lease 1 was granted 3.5 s before the crash. Lease 2 was renewed just before it. The second one is read first, because it may take
	// a while until the other one is read.
	two, one := remainingTTL(2), remainingTTL(1)
	least := 100 - int64(time.Since(granted).Seconds()) - 2
	if one > 96 || one < least || two < one+3 {
		t.Fatalf("the remaining TTLs are %d s and %d s; want %d s to 96 s for the first, and at least 3 s more for the second", one, two, least)
	}
}

// subcommand runs mem_etcd with these arguments and returns its output and exit code.
func subcommand(t *testing.T, args ...string) (output string, code int) {
	t.Helper()
	bytes, err := exec.Command(binary(t, "mem_etcd"), args...).CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if exit != nil {
		code = exit.ExitCode()
	}
	return string(bytes), code
}
