package seed

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
)

const (
	// testKeys is the number of keys of a node in tests.
	testKeys    = 3
	nodesPerTxn = keysPerTxn / testKeys
)

// otherKeys are keys that Run neither counts nor deletes.
var otherKeys = []string{"/other/minions/node-000000", "/registry-2/minions/node-000000"}

func newMemoryStore() *memoryStore {
	m := &memoryStore{keys: map[string]string{}}
	for _, key := range otherKeys {
		m.keys[key] = ""
	}
	return m
}

// one returns the stores of a cluster with one store.
func one(store clientv3.KV) Stores {
	return Stores{All: []clientv3.KV{store}, Nodes: store, Leases: store, CSINodes: store}
}

func testOptions(t *testing.T, count int) Options {
	return Options{
		Nodes: testNodes(t), Range: bulk.Range{Prefix: bulk.NodePrefix, Count: count}, Simulator: NodeSim(40, "127.0.0.1"), Prefix: "/registry",
		Progress: func(int) {}, Removing: func() {},
	}
}

func (m *memoryStore) expectOnlyOtherKeys(t *testing.T) {
	t.Helper()
	if keys := slices.Sorted(maps.Keys(m.keys)); !slices.Equal(keys, otherKeys) {
		t.Errorf("the store has %d keys, want only %q", len(keys), otherKeys)
	}
}

func TestRunWritesAllNodes(t *testing.T) {
	store, done := newMemoryStore(), 0
	o := testOptions(t, 3*nodesPerTxn+1)
	o.Progress = func(n int) { done = n }
	if err := Run(t.Context(), one(store), o); err != nil {
		t.Fatal(err)
	}
	if want := len(otherKeys) + testKeys*o.Range.Count; len(store.keys) != want || done != o.Range.Count {
		t.Errorf("the store has %d keys after a progress of %d nodes, want %d after %d", len(store.keys), done, want, o.Range.Count)
	}
	for _, key := range []string{"/registry/minions/node-000126", "/registry/leases/kube-node-lease/node-000126", "/registry/csinodes/node-000126"} {
		if store.keys[key] == "" {
			t.Errorf("the store has no %s", key)
		}
	}
	if err := Run(t.Context(), one(store), o); !errors.Is(err, ErrNotEmpty) || store.keys["/registry/minions/node-000126"] == "" {
		t.Errorf("Run() with nodes in the store = %v, want %v and that they are kept", err, ErrNotEmpty)
	}
}

// TestRunWritesToOwnStores checks where objects are written if Leases have an own store, that each store must be
// empty, and that a failed run leaves nothing in any.
func TestRunWritesToOwnStores(t *testing.T) {
	main, leases, pods := newMemoryStore(), newMemoryStore(), newMemoryStore()
	stores := Stores{All: []clientv3.KV{main, leases, pods}, Nodes: main, Leases: leases, CSINodes: main}
	o := testOptions(t, 5*nodesPerTxn)
	full := errors.New("no space")
	leases.beforeTxn = func(context.Context) error { return full }
	if err := Run(t.Context(), stores, o); !errors.Is(err, full) || errors.Is(err, ErrIncomplete) {
		t.Errorf("Run() with a full store of Leases = %v, want only %v", err, full)
	}
	main.expectOnlyOtherKeys(t)
	leases.beforeTxn = nil
	if err := Run(t.Context(), stores, o); err != nil {
		t.Fatal(err)
	}
	if got, want := len(main.keys)-len(otherKeys), 2*o.Range.Count; got != want {
		t.Errorf("the main store has %d keys, want %d of nodes and CSINodes", got, want)
	}
	if got := len(leases.keys) - len(otherKeys); got != o.Range.Count || leases.keys["/registry/leases/kube-node-lease/node-000000"] == "" {
		t.Errorf("the store of Leases has %d keys, want %d Leases", got, o.Range.Count)
	}
	pods.expectOnlyOtherKeys(t)
	stores.All = []clientv3.KV{newMemoryStore(), leases}
	stores.Nodes, stores.CSINodes = stores.All[0], stores.All[0]
	if err := Run(t.Context(), stores, o); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("Run() with Leases in their store = %v, want %v", err, ErrNotEmpty)
	}
}

// TestInterruptedRunLeavesNothing cancels the context while transactions are in progress. None of them may be
// cancelled, because a store can execute it after the deletion.
func TestInterruptedRunLeavesNothing(t *testing.T) {
	store := newMemoryStore()
	ctx, interrupt := context.WithCancel(t.Context())
	var begun, cancelled atomic.Int64
	store.beforeTxn = func(txn context.Context) error {
		if begun.Add(1) < 20 {
			return nil
		}
		interrupt()
		select {
		case <-txn.Done():
			cancelled.Add(1)
			return txn.Err()
		case <-time.After(50 * time.Millisecond):
			return nil
		}
	}
	deletes, announced := 0, 0
	store.beforeDelete = func(context.Context) error { deletes++; return nil }
	o := testOptions(t, 100_000)
	o.Removing = func() { announced++ }
	err := Run(ctx, one(store), o)
	if !errors.Is(err, context.Canceled) || errors.Is(err, ErrIncomplete) || deletes == 0 {
		t.Errorf("interrupted Run() = %v after %d deletions, want only %v", err, deletes, context.Canceled)
	}
	if cancelled.Load() > 0 || announced != 1 {
		t.Errorf("Run() cancelled %d transactions and announced the deletion %d times, want 0 and 1", cancelled.Load(), announced)
	}
	store.expectOnlyOtherKeys(t)
}

// TestFailedRunLeavesNothing also checks that large numbers of keys are deleted in several requests.
func TestFailedRunLeavesNothing(t *testing.T) {
	store, full := newMemoryStore(), errors.New("no space")
	var begun atomic.Int64
	store.beforeTxn = func(context.Context) error {
		if begun.Add(1) > 2*keysPerDelete/nodesPerTxn {
			return full
		}
		return nil
	}
	deletes := 0
	store.beforeDelete = func(context.Context) error { deletes++; return nil }
	if err := Run(t.Context(), one(store), testOptions(t, 100_000)); !errors.Is(err, full) || errors.Is(err, ErrIncomplete) {
		t.Errorf("Run() with a full store = %v, want only %v", err, full)
	}
	if deletes < 4 || store.largestPage > keysPerDelete {
		t.Errorf("Run() sent %d deletions of at most %d keys, want 4 or more of at most %d", deletes, store.largestPage, keysPerDelete)
	}
	store.expectOnlyOtherKeys(t)
}

// TestRunSaysWhatItLeaves checks the error if nodes cannot be deleted, and that they are kept for a caller who
// removes the store.
func TestRunSaysWhatItLeaves(t *testing.T) {
	full := errors.New("no space")
	for keep, wantError := range map[bool]error{false: ErrIncomplete, true: full} {
		store := newMemoryStore()
		var begun atomic.Int64
		store.beforeTxn = func(context.Context) error {
			if begun.Add(1) > 1 {
				return full
			}
			return nil
		}
		deletes := 0
		store.beforeDelete = func(context.Context) error { deletes++; return full }
		o := testOptions(t, 1000)
		o.KeepPart = keep
		err := Run(t.Context(), one(store), o)
		if !errors.Is(err, wantError) || errors.Is(err, ErrIncomplete) == keep || (deletes > 0) == keep {
			t.Errorf("Run() with KeepPart %v = %v after %d deletions, want %v", keep, err, deletes, wantError)
		}
		if want := len(otherKeys) + testKeys*nodesPerTxn; len(store.keys) != want {
			t.Errorf("the store has %d keys, want %d", len(store.keys), want)
		}
	}
}

// TestCancelledWritesEnd checks that a store that does not answer delays an interruption only for a time.
func TestCancelledWritesEnd(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	longer, abort := withGrace(ctx, 2*time.Second)
	defer abort()
	interrupt()
	if longer.Err() != nil {
		t.Errorf("the longer context ended with %v, want that it goes on for a time", longer.Err())
	}
	select {
	case <-longer.Done():
	case <-time.After(time.Minute):
		t.Error("the longer context did not end")
	}
}
