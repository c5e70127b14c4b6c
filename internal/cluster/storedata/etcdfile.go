package storedata

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/lease/leasepb"
	"google.golang.org/protobuf/proto"

	"github.com/k8s-1m/k8s-1m/internal/util/progress"
)

const (
	// A transaction of the file has about so many bytes, which are in memory until it ends.
	batchBytes = 32 << 20
	// openTimeout limits the wait for the lock of the new file, which nobody else has.
	openTimeout = time.Second
	// A key of the bucket "key" is the revision, an underscore and the number of the change in that revision.
	revisionBytes     = 8 + 1 + 8
	revisionSeparator = '_'
)

// Buckets of etcd's database. Only the first three have content; etcdutl expects all.
var (
	keyBucket    = []byte("key")
	metaBucket   = []byte("meta")
	leaseBucket  = []byte("lease")
	otherBuckets = []string{"alarm", "cluster", "members", "members_removed", "auth", "authUsers", "authRoles"}
	// compactions are the keys of the last compaction in the bucket "meta".
	compactions = []string{"scheduledCompactRev", "finishedCompactRev"}
)

// etcdFile is the content of a file that writeEtcdSnapshot has written.
type etcdFile struct {
	revision, keys, leases int64
}

// writeEtcdSnapshot reads a store and writes what it contains to a new file, as a snapshot of etcd that etcdutl and
// mem_etcd restore. All revisions are kept, but not the history: the snapshot is that of a store whose current revision
// is compacted. No client may write meanwhile, or the lease of a key may have ended.
func writeEtcdSnapshot(ctx context.Context, client *clientv3.Client, path string, display progress.Display) (content etcdFile, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	keys, err := newReader(ctx, client, "")
	if err != nil {
		return content, err
	}
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: openTimeout, NoSync: true, NoFreelistSync: true})
	if err != nil {
		return content, fmt.Errorf("creating %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := createBuckets(db, keys.revision); err != nil {
		return content, err
	}
	started := time.Now()
	task := display.Task("keys read", int(keys.count))
	used, written, err := writeKeys(ctx, db, keys, task)
	if err != nil {
		progress.Fail(ctx, task, err.Error())
		return content, err
	}
	task.Done(withRate(int(written), started))
	leases, err := readLeases(ctx, client)
	if err != nil {
		return content, err
	}
	if err := writeLeases(db, leases, used); err != nil {
		return content, err
	}
	return etcdFile{keys.revision, written, int64(len(leases))}, db.Sync()
}

// createBuckets creates all buckets, and marks the revision as the current one and as compacted.
func createBuckets(db *bolt.DB, revision int64) error {
	return db.Update(func(tx *bolt.Tx) error {
		for _, name := range append([]string{string(keyBucket), string(metaBucket), string(leaseBucket)}, otherBuckets...) {
			if _, err := tx.CreateBucket([]byte(name)); err != nil {
				return err
			}
		}
		for _, key := range compactions {
			if err := tx.Bucket(metaBucket).Put([]byte(key), revisionKey(revision, 0)); err != nil {
				return err
			}
		}
		return nil
	})
}

// writeKeys writes all pairs in several transactions. It returns the leases that they have, each with one of its keys,
// and the number of pairs.
func writeKeys(ctx context.Context, db *bolt.DB, keys *reader, task progress.Task) (used map[int64]string, written int64, err error) {
	used = map[int64]string{}
	for more := true; more; {
		err = db.Update(func(tx *bolt.Tx) error {
			bucket := tx.Bucket(keyBucket)
			for bytes := 0; bytes < batchBytes; {
				pair, err := keys.peek(ctx)
				if err != nil || pair == nil {
					more = false
					return err
				}
				keys.take()
				if err := putPair(bucket, pair); err != nil {
					return err
				}
				if pair.Lease != 0 {
					used[pair.Lease] = string(pair.Key)
				}
				written++
				bytes += len(pair.Key) + len(pair.Value)
			}
			return nil
		})
		if err != nil {
			return nil, written, err
		}
		task.Set(int(written))
	}
	return used, written, nil
}

// putPair writes a pair under its mod revision. Changes of the same revision get numbers in the order of their keys: a
// reader of the store cannot tell their real order.
func putPair(bucket *bolt.Bucket, pair *mvccpb.KeyValue) error {
	value, err := proto.Marshal(pair)
	if err != nil {
		return err
	}
	number := int64(0)
	for bucket.Get(revisionKey(pair.ModRevision, number)) != nil {
		number++
	}
	return bucket.Put(revisionKey(pair.ModRevision, number), value)
}

// revisionKey returns the key of a change.
func revisionKey(revision, number int64) []byte {
	key := make([]byte, revisionBytes)
	binary.BigEndian.PutUint64(key, uint64(revision))
	key[8] = revisionSeparator
	binary.BigEndian.PutUint64(key[9:], uint64(number))
	return key
}

// writeLeases writes leases with their remaining TTLs. used are the leases that keys have.
func writeLeases(db *bolt.DB, leases []grantedLease, used map[int64]string) error {
	return db.Update(func(tx *bolt.Tx) error {
		for _, lease := range leases {
			delete(used, int64(lease.id))
			value, err := proto.Marshal(&leasepb.Lease{ID: int64(lease.id), TTL: lease.granted, RemainingTTL: lease.remaining})
			if err != nil {
				return err
			}
			key := binary.BigEndian.AppendUint64(nil, uint64(lease.id))
			if err := tx.Bucket(leaseBucket).Put(key, value); err != nil {
				return err
			}
		}
		if len(used) > 0 {
			id := slices.Min(slices.Collect(maps.Keys(used)))
			return fmt.Errorf("lease %x of %q ended while the store was read; stop the clients of the store and repeat the command", id, used[id])
		}
		return nil
	})
}

// appendChecksum appends the SHA-256 of a file to it, as at the end of each snapshot.
func appendChecksum(path string) (err error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return err
	}
	_, err = file.Write(sum.Sum(nil))
	return err
}
