package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/lifecycle"
	"github.com/k8s-1m/k8s-1m/internal/cluster/snapshot/archive"
	"github.com/k8s-1m/k8s-1m/internal/cluster/storedata"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
)

// restoreReserve is the disk space that a restore needs in addition to that of the store.
const restoreReserve = 64 << 20

// RestoreOptions are the options of [Restore].
type RestoreOptions struct {
	Dir     clusterdir.Dir // the cluster must not exist
	File    string
	Display progress.Display
}

// RestoreResult is the result of [Restore].
type RestoreResult struct {
	Manifest archive.Manifest
	Changes  []string // settings that differ from those of the saved cluster, for users
}

// Restore creates a stopped cluster from a snapshot. All files are written to a directory that becomes the
// directory of the cluster only when it is complete, so a failed restore leaves no cluster behind. If the process
// is killed, the next restore of the cluster removes them.
func Restore(ctx context.Context, o RestoreOptions) (result RestoreResult, err error) {
	if err := o.Dir.RequireNew(); err != nil {
		return result, err
	}
	file, reader, err := open(o.File)
	if err != nil {
		return result, err
	}
	defer file.Close()
	defer reader.Close()
	result.Manifest = reader.Manifest
	// The store is on the disk twice: as the extracted file, and as the data directory made from it.
	if err := requireSpace(o.Dir.Home(), 2*reader.Manifest.StoreBytes()+restoreReserve); err != nil {
		return result, err
	}
	staging, err := o.Dir.Stage()
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, staging.Close()) }()
	result.Changes, err = fill(ctx, o, reader, staging)
	if err == nil {
		err = publish(o.Dir, staging)
	}
	if err != nil {
		err = errors.Join(err, staging.Remove())
	}
	return result, err
}

// fill writes all files of the cluster to the directory.
func fill(ctx context.Context, o RestoreOptions, reader *archive.Reader, staging *clusterdir.Staging) (changes []string, err error) {
	encoded, err := extract(ctx, o, reader, staging.Dir)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.File, err)
	}
	config, changes, err := adapt(encoded, o.Dir)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.File, err)
	}
	if config.Settings.Store != reader.Manifest.Store.Kind || !slices.Equal(config.Settings.OwnStores(), reader.Manifest.Resources()) {
		return nil, fmt.Errorf("%s: %w", o.File, archive.Invalid("its settings and its manifest have different stores"))
	}
	task := o.Display.Task("store restored", 0)
	if err = restoreStores(ctx, config, staging.Dir); err != nil {
		progress.Fail(ctx, task, err.Error())
		return nil, err
	}
	task.Done(fmt.Sprintf("%d keys", reader.Manifest.Store.Keys))
	return changes, config.Save(staging.Dir)
}

// restoreStores creates the data directories of all stores of a cluster from their snapshots in its directory, and
// removes the snapshots.
func restoreStores(ctx context.Context, config clusterdir.Config, dir clusterdir.Dir) error {
	if err := clusterdir.PrepareData(dir.Data(), config.Settings); err != nil {
		return err
	}
	for _, name := range config.Settings.StoreNames() {
		stored := filepath.Join(dir.Root(), archive.StoreFileOf(name))
		if err := errors.Join(restoreStore(ctx, config, name, stored, dir.Data()), os.Remove(stored)); err != nil {
			return err
		}
	}
	return nil
}

// extract writes the files of the snapshot to a directory, and returns the content of its cluster.json.
func extract(ctx context.Context, o RestoreOptions, reader *archive.Reader, dir clusterdir.Dir) ([]byte, error) {
	if err := dir.Create(); err != nil {
		return nil, err
	}
	if err := os.Mkdir(filepath.Join(dir.PKI(), "etcd"), 0o700); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir.Root())
	if err != nil {
		return nil, err
	}
	defer root.Close()
	var settings memoryFile
	total := int64(0)
	for _, file := range reader.Manifest.Files {
		total += file.Bytes
	}
	read := storedata.NewTransfer(ctx, o.Display, "snapshot read", total)
	err = reader.Extract(func(file archive.File) (io.WriteCloser, error) {
		if file.Name == archive.ClusterFile {
			return &settings, nil
		}
		return root.OpenFile(file.Name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, archive.EntryMode)
	}, read)
	read.End(err)
	return settings.Bytes(), err
}

// memoryFile is a file that is extracted to memory.
type memoryFile struct{ bytes.Buffer }

// Close implements [io.Closer].
func (*memoryFile) Close() error { return nil }

// adapt returns the configuration of the restored cluster: the saved one with the name, the paths and the
// ports of the new cluster.
func adapt(encoded []byte, dir clusterdir.Dir) (config clusterdir.Config, changes []string, err error) {
	config, err = clusterdir.ParseConfig(encoded)
	if err != nil {
		return config, nil, err
	}
	if config.Settings.StoreAddress != "" {
		return config, nil, archive.Invalid("its cluster uses a store that k1m does not run")
	}
	config.Name = dir.Name()
	config.Settings.Complete()
	config.Settings, changes = config.Settings.Portable()
	if config.Settings.GatewayConfig != "" {
		config.Settings.GatewayConfig = filepath.Join(dir.Root(), archive.GatewayConfigFile)
	}
	if err := config.Settings.Validate(); err != nil {
		// Invalid settings in a file are not a wrong use of the command.
		return config, nil, archive.Invalid("its settings: %s", err.Error())
	}
	config.Ports, err = clusterdir.Ports{}.Assign(config.Name, config.Settings.PortNames(), nil)
	return config, changes, err
}

// publish makes a complete directory that of the cluster.
func publish(dir clusterdir.Dir, staging *clusterdir.Staging) (err error) {
	lock, err := lifecycle.Lock(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	return staging.Publish()
}

// requireSpace returns an error if the file system of a directory, which need not exist, has less free space.
func requireSpace(dir string, bytes int64) error {
	var stat unix.Statfs_t
	err := unix.Statfs(dir, &stat)
	for ; errors.Is(err, os.ErrNotExist) && dir != filepath.Dir(dir); err = unix.Statfs(dir, &stat) {
		dir = filepath.Dir(dir)
	}
	if err != nil {
		return fmt.Errorf("reading the free disk space of %s: %w", dir, err)
	}
	if free := int64(stat.Bavail) * stat.Bsize; free < bytes {
		return fmt.Errorf("%w: %s has %d MiB free, the restore needs %d MiB; free some space, or set K1M_HOME to another disk",
			lifecycle.ErrNoSpace, dir, free>>20, bytes>>20)
	}
	return nil
}
