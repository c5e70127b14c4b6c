package seed

import (
	"bytes"
	"context"
	"slices"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// memoryStore is a store in memory. It executes only the requests of this package.
type memoryStore struct {
	clientv3.KV // nil, for other requests
	mu          sync.Mutex
	keys        map[string]string
	largestPage int
	// beforeTxn and beforeDelete are called before a request is executed; nil for none. An error is that of
	// the request.
	beforeTxn, beforeDelete func(context.Context) error
}

// inRange returns the sorted keys in the range of an operation. The caller holds the lock.
func (m *memoryStore) inRange(op clientv3.Op) []string {
	var keys []string
	for key := range m.keys {
		if key >= string(op.KeyBytes()) && bytes.Compare([]byte(key), op.RangeBytes()) < 0 {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

func (m *memoryStore) Get(ctx context.Context, key string, options ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	op := clientv3.OpGet(key, options...)
	keys := m.inRange(op)
	response := &clientv3.GetResponse{Count: int64(len(keys))}
	if limit := int(op.Limit()); limit > 0 {
		keys = keys[:min(limit, len(keys))]
		m.largestPage = max(m.largestPage, len(keys))
	}
	for _, key := range keys {
		response.Kvs = append(response.Kvs, &mvccpb.KeyValue{Key: []byte(key)})
	}
	return response, ctx.Err()
}

func (m *memoryStore) Delete(ctx context.Context, key string, options ...clientv3.OpOption) (*clientv3.DeleteResponse, error) {
	if m.beforeDelete != nil {
		if err := m.beforeDelete(ctx); err != nil {
			return nil, err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range m.inRange(clientv3.OpDelete(key, options...)) {
		delete(m.keys, key)
	}
	return &clientv3.DeleteResponse{}, ctx.Err()
}

// Txn returns a transaction of puts.
func (m *memoryStore) Txn(ctx context.Context) clientv3.Txn { return &memoryTxn{store: m, ctx: ctx} }

type memoryTxn struct {
	clientv3.Txn
	store *memoryStore
	ctx   context.Context
	puts  []clientv3.Op
}

func (t *memoryTxn) Then(puts ...clientv3.Op) clientv3.Txn { t.puts = puts; return t }

// Commit executes the transaction even if its context is done meanwhile, as a store can.
func (t *memoryTxn) Commit() (*clientv3.TxnResponse, error) {
	if t.store.beforeTxn != nil {
		if err := t.store.beforeTxn(t.ctx); err != nil {
			return nil, err
		}
	}
	t.store.mu.Lock()
	defer t.store.mu.Unlock()
	for _, put := range t.puts {
		t.store.keys[string(put.KeyBytes())] = string(put.ValueBytes())
	}
	return &clientv3.TxnResponse{}, t.ctx.Err()
}
