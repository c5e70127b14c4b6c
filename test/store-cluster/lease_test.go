package storecluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/k8s-1m/k8s-1m/test/store-cluster/check"
)

// TTLs in seconds of leases that outlive a round, and of leases that expire.
const (
	longTTL  = 120
	shortTTL = 3
)

// useLease grants a lease, attaches a key, reads the key, and then revokes the lease, renews it, or lets it expire.
func useLease(ctx context.Context, c *client, r *record) {
	ttl := int64(longTTL)
	if c.random.IntN(3) == 0 {
		ttl = shortTTL
	}
	lease, id, attached := c.attach(ctx, r, ttl)
	if !attached {
		return
	}
	c.readKey(ctx, r, lease.Key)
	switch {
	case ttl == shortTTL:
		r.add(func() { r.expiring = append(r.expiring, lease.Key) })
	case c.random.IntN(2) == 0:
		c.revoke(ctx, &lease, id, r)
	default:
		c.renew(ctx, &lease, id, r)
	}
	r.add(func() { r.leases = append(r.leases, lease) })
	c.readKey(ctx, r, lease.Key)
}

// attach grants a lease and puts a key with it.
func (c *client) attach(ctx context.Context, r *record, ttl int64) (lease check.Lease, id clientv3.LeaseID, attached bool) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	lease = check.Lease{Key: fmt.Sprintf("%slease/%s", r.prefix, c.value()), AliveUntil: r.now() + ttl*int64(time.Second)}
	grant, err := c.store.Grant(ctx, ttl)
	if err != nil {
		return lease, 0, false
	}
	if _, err := c.store.Put(ctx, lease.Key, "x", clientv3.WithLease(grant.ID)); err != nil {
		return lease, grant.ID, false
	}
	lease.Attached = r.now()
	return lease, grant.ID, true
}

// readKey reads a key and records whether it exists.
func (c *client) readKey(ctx context.Context, r *record, key string) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	call := r.now()
	answer, err := c.store.Get(ctx, key, clientv3.WithCountOnly())
	if err != nil {
		return
	}
	read := check.KeyRead{Key: key, Call: call, Return: r.now(), Exists: answer.Count == 1}
	r.add(func() { r.keyReads = append(r.keyReads, read) })
}

func (c *client) revoke(ctx context.Context, lease *check.Lease, id clientv3.LeaseID, r *record) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	lease.RevokeCall = r.now()
	if _, err := c.store.Revoke(ctx, id); err == nil {
		lease.RevokeReturn = r.now()
	}
}

// renew renews a lease. The answer that it does not exist is recorded as a read of its key, which then cannot exist.
func (c *client) renew(ctx context.Context, lease *check.Lease, id clientv3.LeaseID, r *record) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	call := r.now()
	_, err := c.store.KeepAliveOnce(ctx, id)
	switch {
	case err == nil:
		lease.AliveUntil = call + longTTL*int64(time.Second)
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		missing := check.KeyRead{Key: lease.Key, Call: call, Return: r.now()}
		r.add(func() { r.keyReads = append(r.keyReads, missing) })
	}
}
