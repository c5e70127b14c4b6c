package snapshot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/snapshot/archive"
	"github.com/k8s-1m/k8s-1m/internal/cluster/storedata"
)

const (
	storeTimeout = 10 * time.Second
	// countTimeout limits the time for counting keys, of which there can be millions.
	countTimeout = time.Minute

	// revisionBump is the number by which a restore raises the revision. A restored store has lost the
	// changes after the snapshot, and a client may have seen their revisions. With a higher revision, and
	// all lower ones compacted, such a client lists all objects again.
	revisionBump = 1_000_000_000
)

// storeSnapshot writes a consistent snapshot of a store to a file. It returns a description of the content,
// the version of the store, and the size and the checksum of the file. prefix is that of all keys of the API
// servers.
func storeSnapshot(ctx context.Context, parameters component.StoreClient, prefix string, to *os.File, read io.Writer) (archive.Store, string, archive.File, error) {
	client, err := parameters.Dial(ctx, storeTimeout)
	if err != nil {
		return archive.Store{}, "", archive.File{}, err
	}
	defer client.Close()
	before, err := describe(ctx, client, prefix, 0)
	if err != nil {
		return archive.Store{}, "", archive.File{}, fmt.Errorf("reading the store: %w", err)
	}
	received, err := storedata.Receive(ctx, client)
	if err != nil {
		return archive.Store{}, "", archive.File{}, err
	}
	defer received.Close()
	described := before
	if received.Revision > 0 {
		if described, err = describe(ctx, client, prefix, received.Revision); err != nil {
			return archive.Store{}, "", archive.File{}, fmt.Errorf("reading the store: %w", err)
		}
	}
	sum := sha256.New()
	size, err := received.CopyTo(io.MultiWriter(to, sum, read))
	if err != nil {
		return archive.Store{}, "", archive.File{}, err
	}
	return described, storeVersion(ctx, client, parameters.Endpoint), archive.File{Bytes: size, SHA256: hex.EncodeToString(sum.Sum(nil))}, nil
}

// describe counts keys at a revision; 0 is the current one.
func describe(ctx context.Context, client *clientv3.Client, prefix string, revision int64) (archive.Store, error) {
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	options := []clientv3.OpOption{clientv3.WithCountOnly(), clientv3.WithRev(revision)}
	all, err := client.Get(ctx, "\x00", append(options, clientv3.WithFromKey())...)
	if err != nil {
		return archive.Store{}, err
	}
	store := archive.Store{Revision: revision, Keys: all.Count}
	if revision == 0 {
		store.Revision = all.Header.Revision
		options[1] = clientv3.WithRev(store.Revision)
	}
	options = append(options, clientv3.WithPrefix())
	for resource, count := range map[string]*int64{"/minions/": &store.Nodes, "/pods/": &store.Pods} {
		response, err := client.Get(ctx, prefix+resource, options...)
		if err != nil {
			return archive.Store{}, err
		}
		*count = response.Count
	}
	return store, nil
}

// storeVersion returns the version of the store. It is only information, so it may be unknown.
func storeVersion(ctx context.Context, client *clientv3.Client, endpoint string) string {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	status, err := client.Status(ctx, endpoint)
	if err != nil {
		return "unknown"
	}
	return status.Version
}

// restoreStore creates the data directories of all members of a cluster's store from a snapshot of the store.
func restoreStore(ctx context.Context, config clusterdir.Config, store, file, dataDir string) error {
	if config.Settings.HasStoreReplicas() && config.Settings.Store == clusterdir.StoreMemEtcd {
		return fmt.Errorf("restoring the store: a mem_etcd with %d members cannot be restored; it has no command for that yet", config.Settings.StoreReplicas)
	}
	for _, member := range config.Settings.StoreMembers(store) {
		program, args := restoreCommand(config, store, member, file, config.Settings.StoreDir(dataDir, member))
		binary, err := component.FindBinary(program)
		if err != nil {
			return err
		}
		if err := storedata.RunTool(ctx, binary, args...); err != nil {
			return fmt.Errorf("restoring the store: %w", err)
		}
	}
	return nil
}

// restoreCommand returns the command that creates the data directory of a member of a store.
func restoreCommand(config clusterdir.Config, store, member, file, storeDir string) (program string, args []string) {
	bump := strconv.Itoa(revisionBump)
	if config.Settings.Store == clusterdir.StoreMemEtcd {
		return "mem_etcd", []string{"restore", file, "--data-dir", storeDir, "--bump-revision", bump}
	}
	return "etcdutl", []string{
		"snapshot", "restore", file, "--data-dir", storeDir, "--bump-revision", bump, "--mark-compacted",
		"--name", component.MemberName(config, member), "--initial-cluster", component.InitialCluster(config, store),
		"--initial-advertise-peer-urls", config.Ports.URL(clusterdir.StorePeerPort(member)),
	}
}
