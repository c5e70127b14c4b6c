// Package storedata reads whole stores through etcd's API. [Compare] compares two stores, [Copy] creates the data
// directory of mem_etcd or etcd from a running store, and [Receive] gets a snapshot. pages.go reads keys in pages, so
// that no function needs memory for all of them, and etcdfile.go writes the format of etcd's snapshots.
package storedata

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
	"github.com/k8s-1m/k8s-1m/internal/util/temporary"
)

// CopyOptions are the options of [Copy].
type CopyOptions struct {
	From *clientv3.Client
	// To is the program for which the data directory is created: [clusterdir.StoreMemEtcd] or [clusterdir.StoreEtcd].
	To      string
	DataDir string // must be empty or not exist; its parent directory must exist
	// Bump is the number by which the revision is raised.
	Bump uint64
	// Member and PeerURL are those of the only member of a new etcd.
	Member, PeerURL string
	// Find returns the path of a program.
	Find    func(program string) (string, error)
	Display progress.Display
}

// Copy creates a data directory from a running store. mem_etcd gets the store's own snapshot, with the history since
// the last compaction; etcd gets the current keys without history, because it cannot read the snapshots of mem_etcd.
// A temporary directory beside the data directory needs as much disk space as the store. Writes that the store executes
// meanwhile may be missing.
func Copy(ctx context.Context, o CopyOptions) (err error) {
	program := "etcdutl"
	if o.To == clusterdir.StoreMemEtcd {
		program = "mem_etcd"
	}
	binary, err := o.Find(program)
	if err != nil {
		return err
	}
	if err := requireEmptyDir(o.DataDir); err != nil {
		return err
	}
	path, err := filepath.Abs(o.DataDir)
	if err != nil {
		return err
	}
	scratch, err := temporary.Dir(filepath.Dir(path), "."+filepath.Base(path)+".k1m-copy-")
	if err != nil {
		return fmt.Errorf("creating a temporary directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch.Name()), scratch.Close()) }()
	file := filepath.Join(scratch.Name(), "snapshot")
	if o.To == clusterdir.StoreMemEtcd {
		err = receiveSnapshot(ctx, o, file)
	} else {
		err = exportSnapshot(ctx, o, file)
	}
	if err != nil {
		return err
	}
	task := o.Display.Task(program, 0)
	if err = RunTool(ctx, binary, o.restoreArgs(file)...); err != nil {
		progress.Fail(ctx, task, err.Error())
		return err
	}
	task.Done("created " + o.DataDir)
	return nil
}

// requireEmptyDir returns an error unless a directory is empty or does not exist.
func requireEmptyDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil && len(entries) > 0 {
		err = errors.New("it is not empty")
	}
	if err != nil {
		return fmt.Errorf("data directory %s: %w; name an empty directory", dir, err)
	}
	return nil
}

// receiveSnapshot writes the store's own snapshot to a file.
func receiveSnapshot(ctx context.Context, o CopyOptions, path string) (err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	received, err := Receive(ctx, o.From)
	if err != nil {
		return err
	}
	defer received.Close()
	transfer := NewTransfer(ctx, o.Display, "store read", 0)
	_, err = received.CopyTo(io.MultiWriter(file, transfer))
	transfer.End(err)
	return err
}

// exportSnapshot writes the current keys and leases to a file, as a snapshot of etcd.
func exportSnapshot(ctx context.Context, o CopyOptions, path string) error {
	content, err := writeEtcdSnapshot(ctx, o.From, path, o.Display)
	if err != nil {
		return err
	}
	o.Display.Task("leases read", 0).Done(fmt.Sprintf("%d, at revision %d", content.leases, content.revision))
	return appendChecksum(path)
}

// restoreArgs returns the arguments of the program that creates the data directory.
func (o CopyOptions) restoreArgs(file string) []string {
	bump := strconv.FormatUint(o.Bump, 10)
	if o.To == clusterdir.StoreMemEtcd {
		return []string{"restore", file, "--data-dir", o.DataDir, "--bump-revision", bump}
	}
	args := []string{
		"snapshot", "restore", file, "--data-dir", o.DataDir,
		"--name", o.Member, "--initial-cluster", o.Member + "=" + o.PeerURL, "--initial-advertise-peer-urls", o.PeerURL,
	}
	if o.Bump > 0 {
		args = append(args, "--bump-revision", bump, "--mark-compacted")
	}
	return args
}
