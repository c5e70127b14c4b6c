package snapshot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
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

// storeSnapshot writes a consistent snapshot of the store to a file. It returns a description of the content,
// the version of the store, and the size and the checksum of the file. prefix is that of all keys of the API
// servers.
func storeSnapshot(ctx context.Context, parameters component.StoreClient, prefix string, to *os.File, read io.Writer) (Store, string, File, error) {
	client, err := parameters.Dial(ctx, storeTimeout)
	if err != nil {
		return Store{}, "", File{}, err
	}
	defer client.Close()
	before, err := describe(ctx, client, prefix, 0)
	if err != nil {
		return Store{}, "", File{}, fmt.Errorf("reading the store: %w", err)
	}
	response, err := client.SnapshotWithVersion(ctx)
	if err != nil {
		return Store{}, "", File{}, fmt.Errorf("requesting a snapshot from the store: %w", err)
	}
	defer response.Snapshot.Close()
	described := before
	if header := response.Header; header.GetRevision() > 0 {
		if described, err = describe(ctx, client, prefix, header.GetRevision()); err != nil {
			return Store{}, "", File{}, fmt.Errorf("reading the store: %w", err)
		}
	}
	sum, ending := sha256.New(), newCheckedEnd()
	size, err := io.Copy(io.MultiWriter(to, sum, ending, read), response.Snapshot)
	if err == nil {
		err = ending.verify()
	}
	if err != nil {
		return Store{}, "", File{}, fmt.Errorf("receiving the snapshot of the store: %w", err)
	}
	return described, storeVersion(ctx, client, parameters.Endpoint), File{storeFile, size, hex.EncodeToString(sum.Sum(nil))}, nil
}

// describe counts keys at a revision; 0 is the current one.
func describe(ctx context.Context, client *clientv3.Client, prefix string, revision int64) (Store, error) {
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	options := []clientv3.OpOption{clientv3.WithCountOnly(), clientv3.WithRev(revision)}
	all, err := client.Get(ctx, "\x00", append(options, clientv3.WithFromKey())...)
	if err != nil {
		return Store{}, err
	}
	store := Store{Revision: revision, Keys: all.Count}
	if revision == 0 {
		store.Revision = all.Header.Revision
		options[1] = clientv3.WithRev(store.Revision)
	}
	options = append(options, clientv3.WithPrefix())
	for resource, count := range map[string]*int64{"/minions/": &store.Nodes, "/pods/": &store.Pods} {
		response, err := client.Get(ctx, prefix+resource, options...)
		if err != nil {
			return Store{}, err
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

// checkedEnd verifies that data ends with the SHA-256 of the bytes before, as each snapshot of a store does.
type checkedEnd struct {
	sum  hash.Hash
	tail []byte // the last bytes, at most the size of a checksum
}

func newCheckedEnd() *checkedEnd { return &checkedEnd{sum: sha256.New()} }

// Write implements [io.Writer].
func (c *checkedEnd) Write(p []byte) (int, error) {
	c.tail = append(c.tail, p...)
	if before := len(c.tail) - sha256.Size; before > 0 {
		c.sum.Write(c.tail[:before])
		c.tail = c.tail[:copy(c.tail, c.tail[before:])]
	}
	return len(p), nil
}

func (c *checkedEnd) verify() error {
	if !bytes.Equal(c.tail, c.sum.Sum(nil)) {
		return errors.New("its checksum is wrong")
	}
	return nil
}

// restoreStore creates the data directory of a cluster's store from a snapshot of the store.
func restoreStore(ctx context.Context, config clusterdir.Config, file, dataDir string) error {
	program, args := restoreCommand(config, file, clusterdir.StoreDir(dataDir, config.Settings.Store))
	binary, err := component.FindBinary(program)
	if err != nil {
		return err
	}
	if err := clusterdir.PrepareData(dataDir, config.Settings.Store); err != nil {
		return err
	}
	output, err := run(ctx, binary, args...)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("restoring the store with %s: %s (%w)", filepath.Base(binary), lastLine(output), err)
	}
	return nil
}

// run runs a program and returns its output. The program ends if this process is killed, so that it does not
// write to a directory that another k1m removes.
func run(ctx context.Context, binary string, args ...string) ([]byte, error) {
	// The kernel kills the process when the thread that started it exits (PDEATHSIG).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd.CombinedOutput()
}

// restoreCommand returns the command that creates the data directory of a store.
func restoreCommand(config clusterdir.Config, file, storeDir string) (program string, args []string) {
	bump := strconv.Itoa(revisionBump)
	if config.Settings.Store == clusterdir.StoreMemEtcd {
		return "mem_etcd", []string{"restore", file, "--data-dir", storeDir, "--bump-revision", bump}
	}
	peer := config.Ports.URL("store-peer")
	return "etcdutl", []string{
		"snapshot", "restore", file, "--data-dir", storeDir, "--bump-revision", bump, "--mark-compacted",
		"--name", config.Name, "--initial-cluster", config.Name + "=" + peer, "--initial-advertise-peer-urls", peer,
	}
}

// lastLine returns the last line of the output of a program that is not empty.
func lastLine(output []byte) string {
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	return lines[len(lines)-1]
}
