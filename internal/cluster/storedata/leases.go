package storedata

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// leaseWorkers is the number of concurrent requests for single leases.
const leaseWorkers = 32

// grantedLease is a lease with its TTLs in seconds.
type grantedLease struct {
	id                 clientv3.LeaseID
	granted, remaining int64
}

// readLeases returns all leases of a store, sorted by ID, which takes 24 bytes of memory for each. A lease that ends
// meanwhile is left out.
func readLeases(ctx context.Context, client clientv3.Lease) ([]grantedLease, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	listed, err := client.Leases(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing leases: %w", err)
	}
	leases := make([]grantedLease, len(listed.Leases))
	var next atomic.Int64
	var group sync.WaitGroup
	for range min(leaseWorkers, len(leases)) {
		group.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(leases) {
					return
				}
				id := listed.Leases[i].ID
				response, err := client.TimeToLive(ctx, id)
				if err != nil {
					cancel(fmt.Errorf("reading lease %x: %w", int64(id), err))
					return
				}
				// The TTL of a lease that does not exist is -1.
				leases[i] = grantedLease{id, response.GrantedTTL, response.TTL}
			}
		})
	}
	group.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	leases = slices.DeleteFunc(leases, func(l grantedLease) bool { return l.remaining < 0 })
	slices.SortFunc(leases, func(a, b grantedLease) int { return cmp.Compare(a.id, b.id) })
	return leases, nil
}
