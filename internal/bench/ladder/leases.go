package ladder

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
)

const (
	storeDialTimeout = 10 * time.Second
	// A page has so many Leases, of about 500 bytes each. etcd counts all of them for each page, so pages are large.
	leasePage    = 20_000
	pageDeadline = time.Minute
)

// Numbers of protobuf fields: of runtime.Unknown, Lease, LeaseSpec and MicroTime.
const (
	unknownRaw     = 2
	leaseSpec      = 2
	specRenewTime  = 4
	microTimeSecs  = 1
	microTimeNanos = 2
)

// storagePrefix begins each value that an API server has stored in protobuf.
var storagePrefix = []byte("k8s\x00")

// leaseCount is what the store says about the Leases of all nodes at one revision.
type leaseCount struct {
	at time.Time // before the first page was read
	// leases is their number, and renewed the number of those that were renewed after a time.
	leases, renewed int
	// writes is the number of writes of all Leases since each was created. The difference of two counts is the number
	// of renewals that have arrived between them.
	writes int64
}

// leaseReader reads the Leases of nodes from the store.
type leaseReader struct {
	client *clientv3.Client
	prefix string
}

func newLeaseReader(ctx context.Context, c *experiment.Cluster) (*leaseReader, error) {
	store := c.Config.Settings.StoreOf(clusterdir.LeasesResource)
	client, err := component.NewStoreClient(c.Config, c.Dir, store).Dial(context.WithoutCancel(ctx), storeDialTimeout)
	if err != nil {
		return nil, err
	}
	return &leaseReader{client, c.Config.Settings.EtcdPrefix() + "/leases/" + corev1.NamespaceNodeLease + "/" + bulk.NodePrefix}, nil
}

func (r *leaseReader) close() error { return r.client.Close() }

// read counts all Leases of nodes, and those that were renewed after since. All pages have the revision of the first.
func (r *leaseReader) read(ctx context.Context, since time.Time) (count leaseCount, err error) {
	count.at = time.Now()
	from, end, revision := r.prefix, clientv3.GetPrefixRangeEnd(r.prefix), int64(0)
	for {
		page, err := r.page(ctx, from, end, revision)
		if err != nil {
			return count, fmt.Errorf("reading Leases from the store: %w", err)
		}
		for _, kv := range page.Kvs {
			renewed, err := renewTime(kv.Value)
			if err != nil {
				return count, fmt.Errorf("reading the Lease %s from the store: %w", kv.Key, err)
			}
			count.leases++
			count.writes += kv.Version
			if renewed.After(since) {
				count.renewed++
			}
		}
		if !page.More || len(page.Kvs) == 0 {
			return count, nil
		}
		if revision == 0 {
			revision = page.Header.Revision
		}
		from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
}

// page reads a page of Leases. Revision 0 is the current one.
func (r *leaseReader) page(ctx context.Context, from, end string, revision int64) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, pageDeadline)
	defer cancel()
	return r.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(leasePage), clientv3.WithRev(revision))
}

// errNoRenewTime means that a stored value is not a Lease in protobuf with a renewTime.
var errNoRenewTime = errors.New("it is not a Lease in protobuf that has a renewTime")

// renewTime returns spec.renewTime of a stored Lease. Decoding the whole Lease would take several times as long.
func renewTime(stored []byte) (time.Time, error) {
	value, ok := bytes.CutPrefix(stored, storagePrefix)
	for _, number := range []protowire.Number{unknownRaw, leaseSpec, specRenewTime} {
		if ok {
			value, ok = message(value, number)
		}
	}
	if !ok {
		return time.Time{}, errNoRenewTime
	}
	seconds, nanos, ok := microTime(value)
	if !ok {
		return time.Time{}, errNoRenewTime
	}
	return time.Unix(seconds, nanos), nil
}

// message returns the embedded message with a field number.
func message(from []byte, wanted protowire.Number) ([]byte, bool) {
	for len(from) > 0 {
		number, kind, n := protowire.ConsumeTag(from)
		if n < 0 {
			return nil, false
		}
		from = from[n:]
		if number == wanted && kind == protowire.BytesType {
			value, n := protowire.ConsumeBytes(from)
			return value, n >= 0
		}
		if n = protowire.ConsumeFieldValue(number, kind, from); n < 0 {
			return nil, false
		}
		from = from[n:]
	}
	return nil, false
}

// microTime decodes a metav1.MicroTime.
func microTime(from []byte) (seconds, nanos int64, ok bool) {
	for len(from) > 0 {
		number, kind, n := protowire.ConsumeTag(from)
		if n < 0 || kind != protowire.VarintType {
			return 0, 0, false
		}
		value, m := protowire.ConsumeVarint(from[n:])
		if m < 0 {
			return 0, 0, false
		}
		switch number {
		case microTimeSecs:
			seconds = int64(value)
		case microTimeNanos:
			nanos = int64(int32(value))
		}
		from = from[n+m:]
	}
	return seconds, nanos, true
}
