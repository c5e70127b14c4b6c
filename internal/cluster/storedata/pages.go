package storedata

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// The first page has few keys, because their values may be large. After each page, the number of keys is chosen so
	// that the next one has about pageBytes. It at most doubles.
	firstPageKeys = 64
	maxPageKeys   = 20_000
	pageBytes     = 4 << 20
	// pageTimeout limits the time for one page.
	pageTimeout = time.Minute
)

// page is a part of the keys of a store, in their order, or the error that ended the reading.
type page struct {
	pairs []*mvccpb.KeyValue
	err   error
}

// reader reads the keys of a store with a prefix, all at one revision. It reads one page ahead.
type reader struct {
	client   clientv3.KV
	prefix   string // empty for all keys
	revision int64
	count    int64 // number of keys
	pages    chan page
	current  []*mvccpb.KeyValue
}

// newReader starts to read a store at its current revision. The reading ends when ctx is done.
func newReader(ctx context.Context, client clientv3.KV, prefix string) (*reader, error) {
	r := &reader{client: client, prefix: prefix, pages: make(chan page)}
	options := append(r.keyRange(), clientv3.WithCountOnly())
	response, err := r.get(ctx, r.start(), options...)
	if err != nil {
		return nil, err
	}
	r.revision, r.count = response.Header.Revision, response.Count
	go r.readAll(ctx)
	return r, nil
}

// start is the first possible key.
func (r *reader) start() string {
	if r.prefix == "" {
		return "\x00"
	}
	return r.prefix
}

// keyRange returns the option that ends a range at the last possible key.
func (r *reader) keyRange() []clientv3.OpOption {
	if r.prefix == "" {
		return []clientv3.OpOption{clientv3.WithFromKey()}
	}
	return []clientv3.OpOption{clientv3.WithRange(clientv3.GetPrefixRangeEnd(r.prefix))}
}

// readAll sends all pages and closes the channel.
func (r *reader) readAll(ctx context.Context) {
	defer close(r.pages)
	from, limit := r.start(), int64(firstPageKeys)
	for {
		response, err := r.get(ctx, from, append(r.keyRange(), clientv3.WithRev(r.revision), clientv3.WithLimit(limit))...)
		read := page{err: err}
		if err == nil {
			read.pairs = response.Kvs
		}
		select {
		case r.pages <- read:
		case <-ctx.Done():
			return
		}
		if err != nil || !response.More || len(response.Kvs) == 0 {
			return
		}
		from = string(response.Kvs[len(response.Kvs)-1].Key) + "\x00"
		limit = nextLimit(limit, response.Kvs)
	}
}

// nextLimit returns the number of keys of the page after one with these pairs.
func nextLimit(limit int64, pairs []*mvccpb.KeyValue) int64 {
	bytes := 1
	for _, pair := range pairs {
		bytes += len(pair.Key) + len(pair.Value)
	}
	return min(max(int64(len(pairs))*pageBytes/int64(bytes), 1), 2*limit, maxPageKeys)
}

func (r *reader) get(ctx context.Context, from string, options ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	response, err := r.client.Get(ctx, from, options...)
	if errors.Is(err, rpctypes.ErrCompacted) {
		return nil, fmt.Errorf("revision %d was compacted while it was read; stop the clients of the store and repeat the command", r.revision)
	}
	if err != nil {
		return nil, fmt.Errorf("reading keys: %w", err)
	}
	return response, nil
}

// peek returns the next pair without taking it; nil after the last one.
func (r *reader) peek(ctx context.Context) (*mvccpb.KeyValue, error) {
	for len(r.current) == 0 {
		select {
		case next, more := <-r.pages:
			if !more {
				return nil, ctx.Err()
			}
			if next.err != nil {
				return nil, next.err
			}
			r.current = next.pairs
			if len(next.pairs) == 0 {
				return nil, nil
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return r.current[0], nil
}

// take removes the pair that peek has returned.
func (r *reader) take() { r.current = r.current[1:] }
