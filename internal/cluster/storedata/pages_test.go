package storedata

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// pagedStore is a store in memory. It executes only the requests of a reader.
type pagedStore struct {
	clientv3.KV // nil, for other requests
	keys        []string
	value       []byte
	largest     int64 // largest number of keys that was requested
	fail        error // error of all pages
}

func (s *pagedStore) Get(_ context.Context, from string, options ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	op := clientv3.OpGet(from, options...)
	response := &clientv3.GetResponse{Header: &pb.ResponseHeader{Revision: 7}, Count: int64(len(s.keys))}
	if op.IsCountOnly() {
		return response, nil
	}
	if s.fail != nil || op.Rev() != 7 {
		return nil, errors.Join(s.fail, fmt.Errorf("revision %d", op.Rev()))
	}
	s.largest = max(s.largest, op.Limit())
	for _, key := range s.keys {
		if key < from {
			continue
		}
		if int64(len(response.Kvs)) == op.Limit() {
			response.More = true
			break
		}
		response.Kvs = append(response.Kvs, &mvccpb.KeyValue{Key: []byte(key), Value: s.value})
	}
	return response, nil
}

// readAllKeys returns all keys that a reader of the store returns.
func readAllKeys(t *testing.T, s *pagedStore) ([]string, error) {
	t.Helper()
	r, err := newReader(t.Context(), s, "")
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for {
		pair, err := r.peek(t.Context())
		if err != nil || pair == nil {
			return keys, err
		}
		keys = append(keys, string(pair.Key))
		r.take()
	}
}

// TestReaderReadsAllPages checks that each key is read once and in order, and that pages of large values are small.
func TestReaderReadsAllPages(t *testing.T) {
	for _, size := range []int{0, 1000, 1 << 20} {
		s := &pagedStore{value: make([]byte, size)}
		for i := range 3*firstPageKeys + 1 {
			s.keys = append(s.keys, fmt.Sprintf("%04d", i))
		}
		keys, err := readAllKeys(t, s)
		if err != nil || strings.Join(keys, " ") != strings.Join(s.keys, " ") {
			t.Errorf("with values of %d bytes, the reader returned %d of %d keys, %v", size, len(keys), len(s.keys), err)
		}
		if limit := int64(2 * firstPageKeys); size < 1<<20 && s.largest < limit {
			t.Errorf("with values of %d bytes, a page had at most %d keys, want %d after the first", size, s.largest, limit)
		}
		if size == 1<<20 && s.largest > firstPageKeys {
			t.Errorf("with values of 1 MiB, a page had %d keys, want less than the first", s.largest)
		}
	}
	if keys, err := readAllKeys(t, &pagedStore{}); err != nil || len(keys) > 0 {
		t.Errorf("an empty store has the keys %q, %v", keys, err)
	}
}

func TestCompactedRevisionIsAnError(t *testing.T) {
	s := &pagedStore{keys: []string{"a"}, fail: rpctypes.ErrCompacted}
	if _, err := readAllKeys(t, s); err == nil || !strings.Contains(err.Error(), "revision 7 was compacted while it was read; stop the clients") {
		t.Errorf("reading a compacted revision = %v, want an error with the remedy", err)
	}
}

func TestDifferencesNameEachField(t *testing.T) {
	a := mvccpb.KeyValue{Value: []byte("a"), CreateRevision: 1, ModRevision: 2, Version: 3, Lease: 4}
	b := mvccpb.KeyValue{Value: []byte("bc"), CreateRevision: 5, ModRevision: 6, Version: 7, Lease: 255}
	want := "value (1 and 2 bytes), create revision 1 and 5, mod revision 2 and 6, version 3 and 7, lease 4 and ff"
	if got := differences(&a, &b); got != want {
		t.Errorf("differences() = %q, want %q", got, want)
	}
	if got := differences(&a, &a); got != "" {
		t.Errorf("differences() of equal pairs = %q, want none", got)
	}
}
