package seed

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// keysPerDelete limits the keys of a request, because etcd fails a request that takes longer than a few seconds.
const keysPerDelete = 20_000

// remove deletes the objects that a failed Run with these options has written.
func remove(ctx context.Context, stores Stores, o Options) error {
	for keys, store := range map[string]clientv3.KV{
		nodeKeys(o.Prefix): stores.Nodes, leaseKeys(o.Prefix): stores.Leases, csiNodeKeys(o.Prefix): stores.CSINodes,
	} {
		if err := removeKeys(ctx, store, keys+o.Range.Prefix); err != nil {
			return fmt.Errorf("deleting keys from the store: %w", err)
		}
	}
	return nil
}

// removeKeys deletes all keys with a prefix.
func removeKeys(ctx context.Context, client clientv3.KV, prefix string) error {
	end := clientv3.GetPrefixRangeEnd(prefix)
	for from := prefix; ; {
		page, err := client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(keysPerDelete), clientv3.WithKeysOnly())
		if err != nil {
			return err
		}
		if len(page.Kvs) == 0 {
			return nil
		}
		// The key after the last one of the page.
		next := string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
		if _, err := client.Delete(ctx, from, clientv3.WithRange(next)); err != nil {
			return err
		}
		from = next
	}
}
