package store

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
)

// etcdctl runs etcdctl against a server and returns its output.
func (s *server) etcdctl(args ...string) (string, error) {
	s.t.Helper()
	cmd := exec.Command(binary(s.t, "etcdctl"), args...)
	cmd.Env = append(os.Environ(), "ETCDCTL_ENDPOINTS=http://"+s.address)
	output, err := cmd.CombinedOutput()
	return string(output), err
}

// memEtcd runs mem_etcd with these arguments until it exits, and returns its output.
func memEtcd(t *testing.T, args ...string) (string, error) {
	t.Helper()
	output, err := exec.Command(binary(t, "mem_etcd"), args...).CombinedOutput()
	return string(output), err
}

// mustMemEtcd runs mem_etcd with these arguments, which must succeed, and returns its output.
func mustMemEtcd(t *testing.T, args ...string) string {
	t.Helper()
	output, err := memEtcd(t, args...)
	if err != nil {
		t.Fatalf("mem_etcd %v: %v %s", args, err, output)
	}
	return output
}

// allKeys returns all current keys, without the response header, which a restore may change.
func allKeys(t *testing.T, a *api) *pb.RangeResponse {
	t.Helper()
	response, err := a.kv.Range(t.Context(), &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}})
	if err != nil {
		t.Fatal(err)
	}
	response.Header = nil
	return response
}

// TestSnapshotAndRestore takes a snapshot with etcdctl and restores it. All keys and leases must be
// present. By default, revisions continue 1,000,000,000 above those of the snapshot, and a watch from an
// earlier revision gets a compaction error. With --bump-revision 0, revisions and hashes are kept.
func TestSnapshotAndRestore(t *testing.T) {
	g := seededGenerator(t)
	server := startMemEtcd(t)
	a := server.dial()
	for range 2000 {
		response, _ := call(t, a, g.request())
		g.updateRevision(response)
	}
	if _, err := a.lease.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: 99, TTL: 5000}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.kv.Put(t.Context(), &pb.PutRequest{Key: []byte("leased"), Lease: 99}); err != nil {
		t.Fatal(err)
	}
	revision := g.revision + 1
	file := filepath.Join(t.TempDir(), "snapshot")
	if output, err := server.etcdctl("snapshot", "save", file); err != nil {
		t.Fatal(output)
	}
	want := allKeys(t, a)

	for name, flags := range map[string][]string{"raised": nil, "kept": {"--bump-revision", "0"}} {
		dir := filepath.Join(t.TempDir(), name)
		mustMemEtcd(t, append([]string{"restore", file, "--data-dir", dir}, flags...)...)
		b := startMemEtcd(t, "--data-dir", dir).dial()
		if got := allKeys(t, b); !proto.Equal(got, want) {
			t.Fatalf("%s: the restored store contains %v; want %v", name, got, want)
		}
		lease, err := b.lease.LeaseTimeToLive(t.Context(), &pb.LeaseTimeToLiveRequest{ID: 99, Keys: true})
		if err != nil || lease.GrantedTTL != 5000 || len(lease.Keys) != 1 {
			t.Fatalf("%s: the restored lease is %v, error %v; want a granted TTL of 5000 s and 1 key", name, lease, err)
		}
		put, err := b.kv.Put(t.Context(), putRequest("new", ""))
		if err != nil {
			t.Fatal(err)
		}
		if name == "kept" {
			if put.Header.Revision != revision+1 {
				t.Fatalf("the first put has revision %d; want %d", put.Header.Revision, revision+1)
			}
			for _, at := range []int64{max(g.compacted, 1), revision} {
				want, _ := call(t, a, &pb.HashKVRequest{Revision: at})
				got, _ := call(t, b, &pb.HashKVRequest{Revision: at})
				want.(*pb.HashKVResponse).Header, got.(*pb.HashKVResponse).Header = nil, nil
				if !proto.Equal(want, got) {
					t.Fatalf("the hash at revision %d is %v; want %v", at, got, want)
				}
			}
			continue
		}
		if put.Header.Revision != revision+1_000_000_001 {
			t.Fatalf("the first put has revision %d; want %d", put.Header.Revision, revision+1_000_000_001)
		}
		stream, err := b.watch.Watch(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		create := &pb.WatchCreateRequest{Key: []byte("new"), StartRevision: revision + 100}
		send(t, stream, &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}})
		for {
			response, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if response.Canceled {
				if response.CompactRevision != revision+1_000_000_000 {
					t.Fatalf("the watch was cancelled with %v; want compact revision %d", response, revision+1_000_000_000)
				}
				break
			}
		}
	}
}

func TestRestoreRefuses(t *testing.T) {
	server := startMemEtcd(t, "--wal-mode", "none")
	if _, err := server.dial().kv.Put(t.Context(), putRequest("a", "b")); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	good := filepath.Join(dir, "good")
	if output, err := server.etcdctl("snapshot", "save", good); err != nil {
		t.Fatal(output)
	}
	content, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	damaged := append([]byte{}, content...)
	damaged[400] ^= 1 // outside of the data, so that only the hash detects the damage
	mustWrite(t, filepath.Join(dir, "damaged"), string(damaged))
	mustWrite(t, filepath.Join(dir, "short"), string(content[:60]))
	mustWrite(t, filepath.Join(dir, "other"), strings.Repeat("x", 1024))
	mustWrite(t, filepath.Join(dir, "taken", "file"), "")
	for _, c := range []struct{ file, target, flag, expected string }{
		{"damaged", "new", "", "its hash does not match"},
		{"short", "new", "", "no hash at its end"},
		{"short", "new", "--skip-hash-check", "a chunk is damaged"},
		{"other", "new", "--skip-hash-check", "it has no valid snapshot header"},
		{"missing", "new", "", "No such file"},
		{"good", "taken", "", "is not empty"},
		{"good", "new", "--bump-revision=0 --mark-compacted", "--mark-compacted must be true"},
		{"good", "new", "--bump-revision=-1", "invalid value"},
	} {
		args := []string{"snapshot", "restore", filepath.Join(dir, c.file), "--data-dir", filepath.Join(dir, c.target)}
		output, err := memEtcd(t, append(args, strings.Fields(c.flag)...)...)
		if err == nil || !strings.Contains(output, c.expected) || strings.Count(output, "\n") != 1 {
			t.Errorf("restore with %+v: error %v, output %q; want one line that contains %q", c, err, output, c.expected)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "new")); err == nil {
		t.Error("a failed restore created the data directory")
	}
	mustMemEtcd(t, "restore", filepath.Join(dir, "damaged"), "--skip-hash-check=false", "--skip-hash-check", "--data-dir", filepath.Join(dir, "new"))
}

// TestSnapshotStatus checks the output of `mem_etcd snapshot status`. The hash must equal that of HashKV.
func TestSnapshotStatus(t *testing.T) {
	server := startMemEtcd(t, "--wal-mode", "none")
	a := server.dial()
	for _, key := range []string{"a", "b", "a"} {
		if _, err := a.kv.Put(t.Context(), putRequest(key, "")); err != nil {
			t.Fatal(err)
		}
	}
	hash, err := a.maintenance.HashKV(t.Context(), &pb.HashKVRequest{})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "snapshot")
	if output, err := server.etcdctl("snapshot", "save", file); err != nil {
		t.Fatal(output)
	}
	var status struct {
		Hash                uint32
		Revision            int64
		TotalKey, TotalSize int
		Version             string
	}
	fromJSON(t, mustMemEtcd(t, "snapshot", "status", file, "-w", "json"), &status)
	if status.Hash != hash.Hash || status.Revision != 4 || status.TotalKey != 2 || status.TotalSize%512 != 0 || status.Version != "3.7.0" {
		t.Fatalf("the status is %+v; want hash %d, revision 4, 2 keys, a multiple of 512 bytes and version 3.7.0", status, hash.Hash)
	}
	for _, form := range []string{"simple", "table", "fields"} {
		if output := mustMemEtcd(t, "snapshot", "status", file, "--write-out", form); !strings.Contains(output, "3.7.0") {
			t.Fatalf("the status in the format %s does not contain the version: %s", form, output)
		}
	}
}

// TestMoveFromEtcd restores a snapshot of etcd. All keys and leases must be present and, with
// --bump-revision 0, the whole history.
func TestMoveFromEtcd(t *testing.T) {
	g := seededGenerator(t)
	etcd := startEtcd(t)
	a := etcd.dial()
	for range 1500 {
		response, _ := call(t, a, g.request())
		g.updateRevision(response)
	}
	// With these keys the B+tree has several levels, and some values are larger than a page.
	for i := range 3000 {
		request := &pb.PutRequest{Key: fmt.Appendf(nil, "many/%d", i), Value: make([]byte, 100+(i%100)*(i%100)*5)}
		response, err := a.kv.Put(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		g.updateRevision(response)
	}
	if _, err := a.lease.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: 99, TTL: 5000}); err != nil {
		t.Fatal(err)
	}
	response, err := a.kv.Put(t.Context(), &pb.PutRequest{Key: []byte("leased"), Lease: 99})
	if err != nil {
		t.Fatal(err)
	}
	g.updateRevision(response)
	file := filepath.Join(t.TempDir(), "snapshot")
	if output, err := etcd.etcdctl("snapshot", "save", file); err != nil {
		t.Fatal(output)
	}
	var status struct {
		Revision int64
		TotalKey int
	}
	fromJSON(t, mustMemEtcd(t, "snapshot", "status", file, "-w", "json"), &status)
	want := allKeys(t, a)
	if status.Revision != g.revision || int64(status.TotalKey) != want.Count {
		t.Fatalf("the status of the snapshot is %+v; want revision %d and %d keys", status, g.revision, want.Count)
	}
	for name, flags := range map[string][]string{"raised": nil, "kept": {"--bump-revision", "0"}} {
		dir := filepath.Join(t.TempDir(), name)
		mustMemEtcd(t, append([]string{"restore", file, "--data-dir", dir}, flags...)...)
		b := startMemEtcd(t, "--data-dir", dir).dial()
		if got := allKeys(t, b); !proto.Equal(got, want) {
			t.Fatalf("%s: the %d restored keys differ from the %d keys of etcd", name, got.Count, want.Count)
		}
		lease, err := b.lease.LeaseTimeToLive(t.Context(), &pb.LeaseTimeToLiveRequest{ID: 99, Keys: true})
		if err != nil || lease.GrantedTTL != 5000 || len(lease.Keys) != 1 {
			t.Fatalf("%s: the restored lease is %v, error %v; want a granted TTL of 5000 s and 1 key", name, lease, err)
		}
		if name == "kept" {
			from := max(g.compacted, 1)
			if !proto.Equal(history(t, a, from, g.revision), history(t, b, from, g.revision)) {
				t.Fatal("the restored history differs from etcd's")
			}
		}
	}
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	mustWrite(t, file, string(content[:len(content)/2]))
	output, err := memEtcd(t, "restore", file, "--skip-hash-check", "--data-dir", filepath.Join(t.TempDir(), "new"))
	if err == nil || !strings.Contains(output, "the file is truncated") {
		t.Fatalf("restoring a truncated snapshot: error %v, output %s", err, output)
	}
}
