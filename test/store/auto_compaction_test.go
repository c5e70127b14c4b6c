package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/status"
)

// autoCompactionTimeout is the time limit for a compaction that is due after a second.
const autoCompactionTimeout = 5 * time.Minute

// TestAutoCompaction writes to etcd and to mem_etcd with the same flags until they have compacted the first
// revision. The newest revision stays readable.
func TestAutoCompaction(t *testing.T) {
	flags := []string{"--auto-compaction-mode", "periodic", "--auto-compaction-retention", "1s"}
	for name, start := range map[string]func(testing.TB, ...string) *server{"etcd": startEtcd, "mem_etcd": startMemEtcd} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), autoCompactionTimeout)
			defer cancel()
			a := start(t, flags...).dial()
			for i, compacted := 0, false; !compacted; i++ {
				written, err := a.kv.Put(ctx, putRequest("key", fmt.Sprint(i)))
				if err != nil {
					t.Fatal(err)
				}
				if isCompacted(ctx, t, a, written.Header.Revision) {
					t.Fatalf("the newest revision %d is compacted", written.Header.Revision)
				}
				compacted = isCompacted(ctx, t, a, 2)
				time.Sleep(50 * time.Millisecond)
			}
		})
	}
}

// TestAutoCompactionSparesPages reads a revision in pages, by requests and by a stream, while later ones are compacted.
func TestAutoCompactionSparesPages(t *testing.T) {
	// pagedValue is the size of one of pagedKeys values. Together they are more than a connection holds.
	const pagedValue, pagedKeys = 1 << 20, 40
	flags := []string{"--auto-compaction-mode", "periodic", "--auto-compaction-retention", "1s"}
	for name, read := range map[string]func(*testing.T, *api, *pb.RangeRequest){"requests": readPage, "stream": readStream} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), autoCompactionTimeout)
			defer cancel()
			a := startMemEtcd(t, flags...).dial()
			put := func(key, value string) int64 {
				written, err := a.kv.Put(ctx, putRequest(key, value))
				if err != nil {
					t.Fatal(err)
				}
				return written.Header.Revision
			}
			put("key", "v")
			var revision int64
			for i := range pagedKeys {
				revision = put(fmt.Sprintf("page-%02d", i), strings.Repeat("v", pagedValue))
			}
			read(t, a, &pb.RangeRequest{Key: []byte("page-"), RangeEnd: []byte("page-9"), Revision: revision})
			for !isCompacted(ctx, t, a, revision-1) {
				put("key", "w")
				time.Sleep(50 * time.Millisecond)
			}
			for start := time.Now(); time.Since(start) < 3*time.Second; time.Sleep(50 * time.Millisecond) {
				put("key", "w")
			}
			if isCompacted(ctx, t, a, revision) {
				t.Errorf("revision %d is compacted, although there are further pages", revision)
			}
		})
	}
}

// readPage reads the first page.
func readPage(t *testing.T, a *api, request *pb.RangeRequest) {
	request.Limit = 1
	if page, err := a.kv.Range(t.Context(), request); err != nil || !page.More {
		t.Fatalf("a page of revision %d: %v, more %v", request.Revision, err, page.GetMore())
	}
}

// readStream reads the first message of a stream, which stays open.
func readStream(t *testing.T, a *api, request *pb.RangeRequest) {
	stream, err := a.kv.RangeStream(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
}

// isCompacted reports whether a revision that exists can no longer be read.
func isCompacted(ctx context.Context, t *testing.T, a *api, revision int64) bool {
	t.Helper()
	_, err := a.kv.Range(ctx, &pb.RangeRequest{Key: []byte("key"), Revision: revision})
	if err == nil {
		return false
	}
	if message := status.Convert(err).Message(); message != "etcdserver: mvcc: required revision has been compacted" {
		t.Fatal(err)
	}
	return true
}

// TestAutoCompactionFlags starts both servers with values that have the same meaning in both.
func TestAutoCompactionFlags(t *testing.T) {
	for _, flags := range [][]string{
		{"--auto-compaction-retention", "0"},
		{"--auto-compaction-mode", "revision", "--auto-compaction-retention", "1000"},
		{"--auto-compaction-mode", "periodic", "--auto-compaction-retention", "8"},
		{"--auto-compaction-retention", "1h30m"},
	} {
		startMemEtcd(t, slices.Concat([]string{"--wal-mode", "none"}, flags)...)
		startEtcd(t, flags...)
	}
}
