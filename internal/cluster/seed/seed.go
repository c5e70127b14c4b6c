// Package seed writes nodes and their Leases directly into the store of a cluster before its API servers
// start. It takes seconds for a number of nodes for which requests to an API server take hours.
//
// The stored bytes are those that the API server stores after k1m has created a node, kwok has made it Ready,
// and kube-controller-manager has added its labels and annotation. replay.go computes one node and one
// Lease with the API server's own code for managed fields, from the writes that node.go and lease.go list.
// objects.go changes the name, the UID and the zone for each further node. [Run] writes them.
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

// ErrNotEmpty means that the store already contains keys.
var ErrNotEmpty = errors.New("the store is not empty")

const (
	// nodesPerTxn is limited by the stores, which allow 128 operations in a transaction. A node takes two.
	nodesPerTxn = 64
	workers     = 8
	// emptyTimeout limits the time for counting the keys of the store.
	emptyTimeout     = time.Minute
	progressInterval = 200 * time.Millisecond
)

// Options are the options of [Run].
type Options struct {
	Nodes *bulk.Nodes
	Range bulk.Range
	// Prefix is the prefix of all keys of the API servers (--etcd-prefix), such as /registry.
	Prefix string
	// Progress is called several times per second with the number of nodes that were written.
	Progress func(done int)
}

// Run writes the nodes of the range and their Leases to an empty store. Otherwise it returns an error that
// wraps ErrNotEmpty. A node and its Lease are written in the same transaction.
func Run(ctx context.Context, client *clientv3.Client, o Options) error {
	if err := requireEmpty(ctx, client, o.Prefix); err != nil {
		return err
	}
	template, err := newTemplate(o.Nodes, o.Range.Count, metav1.Now())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next, done atomic.Int64
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			w := &worker{client: client, options: o, objects: template.objects()}
			for ctx.Err() == nil {
				first := int(next.Add(nodesPerTxn)) - nodesPerTxn
				if first >= o.Range.Count {
					return
				}
				count := min(nodesPerTxn, o.Range.Count-first)
				if err := w.write(ctx, first, count); err != nil {
					cancel(fmt.Errorf("writing %s to the store: %w", o.Range.Name(first), err))
					return
				}
				done.Add(int64(count))
			}
		})
	}
	stopped := make(chan struct{})
	go func() { group.Wait(); close(stopped) }()
	for running := true; running; {
		select {
		case <-stopped:
			running = false
		case <-time.After(progressInterval):
		}
		o.Progress(int(done.Load()))
	}
	return context.Cause(ctx)
}

// requireEmpty returns an error that wraps ErrNotEmpty if the store has a key with the prefix.
func requireEmpty(ctx context.Context, client *clientv3.Client, prefix string) error {
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

// worker writes nodes, one transaction at a time.
type worker struct {
	client  *clientv3.Client
	options Options
	objects *objects
}

// write writes consecutive nodes of the range.
func (w *worker) write(ctx context.Context, first, count int) error {
	var puts []clientv3.Op
	for i := first; i < first+count; i++ {
		name := w.options.Range.Name(i)
		node, lease, err := w.objects.encode(name, w.options.Range.First+i)
		if err != nil {
			return err
		}
		puts = append(puts,
			clientv3.OpPut(w.options.Prefix+"/minions/"+name, node),
			clientv3.OpPut(w.options.Prefix+"/leases/"+leaseNamespace+"/"+name, lease))
	}
	_, err := w.client.Txn(ctx).Then(puts...).Commit()
	return err
}
