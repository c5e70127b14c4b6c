package store

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
)

// k1m runs k1m with these arguments and returns its output and its exit code.
func k1m(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.Command(binary(t, "k1m"), args...)
	var out, failures bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &failures
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), failures.String(), cmd.ProcessState.ExitCode()
}

// copyStore copies a server to a new data directory.
func copyStore(t *testing.T, from *server, to string, flags ...string) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "copy")
	args := append([]string{"store", "copy", "http://" + from.address, "--to", to, "--data-dir", dir}, flags...)
	if stdout, stderr, code := k1m(t, args...); code != 0 || !strings.Contains(stdout, "is a data directory of "+to) {
		t.Fatalf("copy to %s: exit code %d, %q, %q", to, code, stdout, stderr)
	}
	return dir
}

// compareStores fails the test unless two servers hold the same.
func compareStores(t *testing.T, a, b *server) {
	t.Helper()
	stdout, stderr, code := k1m(t, "store", "compare", "http://"+a.address, "http://"+b.address)
	if code != 0 || strings.Count(stdout, "\n") != 2 {
		t.Fatalf("compare: exit code %d, %q, %q", code, stdout, stderr)
	}
	t.Log(stdout, stderr)
}

// fill executes random requests, and puts many keys, some with large values and some with a lease.
func fill(t *testing.T, g *generator, a *api) {
	t.Helper()
	for range 1500 {
		response, _ := call(t, a, g.request())
		g.updateRevision(response)
	}
	// Leases with short TTLs could end while stores are compared.
	leases, err := a.lease.LeaseLeases(t.Context(), &pb.LeaseLeasesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, lease := range leases.Leases {
		if _, err := a.lease.LeaseRevoke(t.Context(), &pb.LeaseRevokeRequest{ID: lease.ID}); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []int64{99, 100} {
		if _, err := a.lease.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: id, TTL: 50 * id}); err != nil {
			t.Fatal(err)
		}
	}
	var puts []*pb.RequestOp
	for i := range 3000 {
		put := &pb.PutRequest{Key: fmt.Appendf(nil, "many/%d", i), Value: make([]byte, 100+(i%100)*(i%100)*5)}
		if i%10 == 0 {
			put.Lease = 99
		}
		puts = append(puts, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: put}})
		// Several keys have the same revision.
		if len(puts) == 20 {
			response, err := a.kv.Txn(t.Context(), &pb.TxnRequest{Success: puts})
			if err != nil {
				t.Fatal(err)
			}
			g.updateRevision(response)
			puts = nil
		}
	}
}

// TestCopyToMemEtcdAndBack copies a running etcd to mem_etcd and back, and to mem_etcd again. The stores must hold the
// same, and continue with the same revision.
func TestCopyToMemEtcdAndBack(t *testing.T) {
	g := seededGenerator(t)
	original := startEtcd(t)
	fill(t, g, original.dial())

	moved := startMemEtcd(t, "--data-dir", copyStore(t, original, "mem_etcd"))
	compareStores(t, original, moved)
	from := max(g.compacted, 1)
	if !proto.Equal(history(t, original.dial(), from, g.revision), history(t, moved.dial(), from, g.revision)) {
		t.Error("the history of the copy differs from etcd's")
	}
	back := startEtcd(t, "--data-dir", copyStore(t, moved, "etcd"))
	compareStores(t, moved, back)
	compareStores(t, original, back)
	again := startMemEtcd(t, "--data-dir", copyStore(t, back, "mem_etcd"))
	compareStores(t, original, again)

	for _, s := range []*server{moved, back, again} {
		a := s.dial()
		lease, err := a.lease.LeaseTimeToLive(t.Context(), &pb.LeaseTimeToLiveRequest{ID: 99, Keys: true})
		if err != nil || lease.GrantedTTL != 4950 || len(lease.Keys) != 300 {
			t.Errorf("the copied lease is %v, error %v; want a granted TTL of 4950 s and 300 keys", lease, err)
		}
		put, err := a.kv.Put(t.Context(), putRequest("new", ""))
		if err != nil || put.Header.Revision != g.revision+1 {
			t.Errorf("the first put has the header %v, error %v; want revision %d", put.GetHeader(), err, g.revision+1)
		}
	}
}

// TestCopyRaisesTheRevision checks --bump-revision in both directions. All keys keep their revisions.
func TestCopyRaisesTheRevision(t *testing.T) {
	original := startMemEtcd(t)
	put, err := original.dial().kv.Put(t.Context(), putRequest("a", "b"))
	if err != nil {
		t.Fatal(err)
	}
	const bump = 1000
	copies := []*server{
		startMemEtcd(t, "--data-dir", copyStore(t, original, "mem_etcd", "--bump-revision", fmt.Sprint(bump))),
		startEtcd(t, "--data-dir", copyStore(t, original, "etcd", "--bump-revision", fmt.Sprint(bump))),
	}
	for _, s := range copies {
		compareStores(t, original, s)
		next, err := s.dial().kv.Put(t.Context(), putRequest("next", ""))
		if err != nil || next.Header.Revision != put.Header.Revision+bump+1 {
			t.Errorf("the first put after the copy has the header %v, error %v; want revision %d", next.GetHeader(), err, put.Header.Revision+bump+1)
		}
	}
}

// TestCompareFindsEachDifference changes copies of a store in one way each.
func TestCompareFindsEachDifference(t *testing.T) {
	original := startMemEtcd(t)
	a := original.dial()
	for i := range 200 {
		if _, err := a.kv.Put(t.Context(), putRequest(fmt.Sprintf("/k/%03d", i), "value")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.lease.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: 99, TTL: 5000}); err != nil {
		t.Fatal(err)
	}
	other := startMemEtcd(t, "--data-dir", copyStore(t, original, "mem_etcd"))
	b := other.dial()
	compareStores(t, original, other)

	changes := []func() error{
		func() error { _, err := b.kv.Put(t.Context(), putRequest("/k/150", "changed")); return err },
		func() error {
			_, err := b.kv.DeleteRange(t.Context(), &pb.DeleteRangeRequest{Key: []byte("/k/199")})
			return err
		},
		func() error { _, err := b.kv.Put(t.Context(), putRequest("/k/0005", "new")); return err },
		func() error {
			_, err := b.lease.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: 255, TTL: 5000})
			return err
		},
		func() error {
			_, err := b.lease.LeaseRevoke(t.Context(), &pb.LeaseRevokeRequest{ID: 99})
			return err
		},
	}
	for _, change := range changes {
		if err := change(); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{"store", "compare", "http://" + original.address, "http://" + other.address}
	stdout, stderr, code := k1m(t, args...)
	for _, want := range []string{
		`"/k/0005": only in the second store`, `"/k/199": only in the first store`, `"/k/150": value (5 and 7 bytes), mod revision 152 and `,
		"lease ff: only in the second store", "lease 63: only in the first store",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("compare printed\n%s\nwant %q in it", stdout, want)
		}
	}
	if code != 1 || !strings.HasSuffix(stderr, "k1m: the stores differ in 5 keys and leases\n") {
		t.Errorf("compare: exit code %d, %q; want 1 and 5 differences", code, stderr)
	}
	if stdout, _, code := k1m(t, append(args, "--max-differences", "1")...); code != 1 || !strings.Contains(stdout, "... and 4 more\n") {
		t.Errorf("compare with one difference: exit code %d, %q", code, stdout)
	}
	if stdout, stderr, code := k1m(t, append(args, "--prefix", "/k/15", "-o", "json")...); code != 1 || !strings.Contains(stdout, `"differing": 1,`) {
		t.Errorf("compare of a prefix: exit code %d, %q, %q; want one difference", code, stdout, stderr)
	}
	if stdout, stderr, code := k1m(t, append(args, "--prefix", "/k/1")...); code != 1 || !strings.Contains(stderr, "differ in 2 keys") {
		t.Errorf("compare of a prefix: exit code %d, %q, %q; want two differences", code, stdout, stderr)
	}
	if stdout, stderr, code := k1m(t, append(args, "--prefix", "/k/02")...); code != 0 {
		t.Errorf("compare of an unchanged prefix: exit code %d, %q, %q", code, stdout, stderr)
	}
}

func TestStoreCommandsRefuse(t *testing.T) {
	url := "http://" + startMemEtcd(t, "--wal-mode", "none").address
	nobody := fmt.Sprintf("http://127.0.0.1:%d", freePort(t))
	taken := t.TempDir()
	mustWrite(t, filepath.Join(taken, "file"), "")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"compare", url}, 2, "accepts 2 arg(s)"},
		{[]string{"compare", url, "localhost"}, 2, `"localhost": not a URL with a port`},
		{[]string{"compare", url, nobody}, 1, "connecting to " + nobody},
		{[]string{"compare", url, url, "--max-differences", "-1"}, 2, "must be 0 or more"},
		{[]string{"compare", url, url, "--cert", "x"}, 2, "must be used together"},
		{[]string{"copy", url, "--data-dir", "x"}, 2, `--to "": choose mem_etcd or etcd`},
		{[]string{"copy", url, "--to", "etcd"}, 2, "--data-dir: name the directory"},
		{[]string{"copy", url, "--to", "etcd", "--data-dir", taken}, 1, "it is not empty; name an empty directory"},
		{[]string{"copy", nobody, "--to", "etcd", "--data-dir", taken}, 1, "connecting to " + nobody},
	} {
		_, stderr, code := k1m(t, append([]string{"store"}, c.args...)...)
		if code != c.code || !strings.Contains(stderr, c.want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("k1m store %q: exit code %d, %q; want %d and one line with %q", c.args, code, stderr, c.code, c.want)
		}
	}
}
