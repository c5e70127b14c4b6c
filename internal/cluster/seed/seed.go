// Package seed writes nodes and the objects that they own directly into the stores of a cluster before its API servers
// start. It takes seconds for a number of nodes for which requests to an API server take hours.
//
// The stored bytes are those that the API server stores after k1m has created a node, the simulator (kwok or node-sim)
// has made it Ready, and kube-controller-manager has added its labels and annotation. replay.go computes one node, one
// Lease and, for node-sim, one CSINode with the API server's own code for managed fields, from the writes that node.go,
// nodesim.go and lease.go list. objects.go changes the name, the UID and the zone for each further node. [Run] writes
// them. If it fails, remove.go deletes what it has written.
package seed

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
)

var (
	// ErrNotEmpty means that the store already contains keys.
	ErrNotEmpty = errors.New("the store is not empty")
	// ErrIncomplete means that a failed Run could not delete the nodes that it had written.
	ErrIncomplete = errors.New("the store keeps a part of the nodes")
)

const (
	// keysPerTxn is the number of operations in a transaction that the stores allow.
	keysPerTxn = 128
	workers    = 8
	// emptyTimeout limits the time for counting the keys of the store.
	emptyTimeout     = time.Minute
	progressInterval = 200 * time.Millisecond
	// writeGrace is the time for which a write may go on after the context of Run is done. The store may execute
	// a cancelled write later than the deletions that follow.
	writeGrace = 5 * time.Second
	// removeTimeout limits the time for deleting what a failed Run has written.
	removeTimeout = 2 * time.Minute
)

// Stores are the stores of a cluster. They are equal if the cluster has one.
type Stores struct {
	// All are all stores, each once. They must be empty.
	All []clientv3.KV
	// Nodes, Leases and CSINodes are those of them that have these objects.
	Nodes, Leases, CSINodes clientv3.KV
}

// Options are the options of [Run].
type Options struct {
	Nodes *bulk.Nodes
	Range bulk.Range
	// Simulator is the program that will simulate the nodes.
	Simulator Simulator
	// Prefix is the prefix of all keys of the API servers (--etcd-prefix), such as /registry.
	Prefix string
	// Progress is called several times per second with the number of nodes that were written.
	Progress func(done int)
	// KeepPart means that a failed Run leaves what it has written, because the caller removes the store.
	KeepPart bool
	// Removing is called before a failed Run deletes what it has written, which can take long.
	Removing func()
}

// Run writes the nodes of the range and the objects that they own to empty stores. Otherwise it returns an error that
// wraps ErrNotEmpty. A node and its objects are written in the same transaction, as far as they are in one store. If
// Run fails later, also because ctx is done, it deletes what it has written. It uses the stores for that after ctx is
// done.
func Run(ctx context.Context, stores Stores, o Options) error {
	for _, store := range stores.All {
		if err := requireEmpty(ctx, store, o.Prefix); err != nil {
			return err
		}
	}
	template, err := newTemplate(o.Nodes, o.Simulator, o.Range.Count, metav1.Now())
	if err != nil {
		return err
	}
	err = writeAll(ctx, stores, o, template)
	if err == nil || o.KeepPart {
		return err
	}
	o.Removing()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
	defer cancel()
	if failed := remove(ctx, stores, o); failed != nil {
		return fmt.Errorf("%w; %w: %w", err, ErrIncomplete, failed)
	}
	return err
}

// writeAll writes all nodes of the range. When it returns, no write is in progress, unless one takes longer than
// writeGrace.
func writeAll(ctx context.Context, stores Stores, o Options, template *template) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	writeContext, abort := withGrace(ctx, writeGrace)
	defer abort()
	nodesPerTxn := keysPerTxn / o.Simulator.keysPerNode()
	var next, done atomic.Int64
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			w := &worker{stores: stores, options: o, objects: template.objects()}
			for ctx.Err() == nil {
				first := int(next.Add(int64(nodesPerTxn))) - nodesPerTxn
				if first >= o.Range.Count {
					return
				}
				count := min(nodesPerTxn, o.Range.Count-first)
				if err := w.write(writeContext, first, count); err != nil {
					cancel(fmt.Errorf("writing %s to the store: %w", o.Range.Name(first), err))
					return
				}
				done.Add(int64(count))
			}
		})
	}
	report(&group, func() { o.Progress(int(done.Load())) })
	return context.Cause(ctx)
}

// report calls progress several times per second until the group has ended, and once after that.
func report(group *sync.WaitGroup, progress func()) {
	stopped := make(chan struct{})
	go func() { group.Wait(); close(stopped) }()
	for running := true; running; {
		select {
		case <-stopped:
			running = false
		case <-time.After(progressInterval):
		}
		progress()
	}
}

// withGrace returns a context that is done some time after ctx is done, or when it is cancelled.
func withGrace(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-time.After(grace):
			cancel()
		case <-longer.Done():
		}
	})
	return longer, func() { stop(); cancel() }
}

// requireEmpty returns an error that wraps ErrNotEmpty if the store has a key with the prefix.
func requireEmpty(ctx context.Context, client clientv3.KV, prefix string) error {
	ctx, cancel := context.WithTimeout(ctx, emptyTimeout)
	defer cancel()
	response, err := client.Get(ctx, prefix+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return fmt.Errorf("counting the keys of the store: %w", err)
	}
	if response.Count > 0 {
		return fmt.Errorf("%w: it has %d keys below %s/", ErrNotEmpty, response.Count, prefix)
	}
	return nil
}

// worker writes nodes, one transaction at a time in each store.
type worker struct {
	stores  Stores
	options Options
	objects *objects
}

// write writes consecutive nodes of the range.
func (w *worker) write(ctx context.Context, first, count int) error {
	puts := map[clientv3.KV][]clientv3.Op{}
	put := func(store clientv3.KV, key, value string) {
		puts[store] = append(puts[store], clientv3.OpPut(key, value))
	}
	for i := first; i < first+count; i++ {
		name := w.options.Range.Name(i)
		stored, err := w.objects.encode(name, w.options.Range.First+i)
		if err != nil {
			return err
		}
		put(w.stores.Nodes, nodeKeys(w.options.Prefix)+name, stored.node)
		put(w.stores.Leases, leaseKeys(w.options.Prefix)+name, stored.lease)
		if stored.csiNode != "" {
			put(w.stores.CSINodes, csiNodeKeys(w.options.Prefix)+name, stored.csiNode)
		}
	}
	for store, ops := range puts {
		if _, err := store.Txn(ctx).Then(ops...).Commit(); err != nil {
			return err
		}
	}
	return nil
}

// nodeKeys returns the prefix of the keys of nodes.
func nodeKeys(prefix string) string { return prefix + "/minions/" }

// leaseKeys returns the prefix of the keys of the nodes' Leases.
func leaseKeys(prefix string) string { return prefix + "/leases/" + leaseNamespace + "/" }

// csiNodeKeys returns the prefix of the keys of CSINodes.
func csiNodeKeys(prefix string) string { return prefix + "/csinodes/" }
