package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/lifecycle"
	"github.com/k8s-1m/k8s-1m/internal/cluster/snapshot/archive"
	"github.com/k8s-1m/k8s-1m/internal/cluster/storedata"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
	"github.com/k8s-1m/k8s-1m/internal/util/temporary"
)

// SaveOptions are the options of [Save].
type SaveOptions struct {
	Dir     clusterdir.Dir
	File    string // an existing file is replaced when the new one is complete
	Version string // version of k1m
	Display progress.Display
}

// Save saves a cluster, which may be running or stopped.
func Save(ctx context.Context, o SaveOptions) (manifest archive.Manifest, err error) {
	err = lifecycle.UseStores(ctx, o.Dir, func(ctx context.Context, config clusterdir.Config) error {
		if config.Settings.StoreAddress != "" {
			return fmt.Errorf("cluster %q uses a store that k1m does not run (--store-address); save that store with `etcdctl snapshot save`", o.Dir.Name())
		}
		manifest, err = save(ctx, o, config)
		return err
	})
	return manifest, err
}

// save writes the snapshot to a temporary file, and renames it when it is complete and durable.
func save(ctx context.Context, o SaveOptions, config clusterdir.Config) (manifest archive.Manifest, err error) {
	if info, err := os.Stat(o.File); err == nil && info.IsDir() {
		return manifest, fmt.Errorf("%s: is a directory; name a file", o.File)
	}
	target, err := temporaryFile(o.File)
	if err != nil {
		return manifest, err
	}
	defer func() { err = errors.Join(err, discard(target)) }()

	manifest = archive.Manifest{Name: config.Name, Created: time.Now().UTC().Truncate(time.Second)}
	manifest.Versions = archive.Versions{K1m: o.Version, Kubernetes: kubernetesVersion()}
	stores, closeStores, err := readStores(ctx, o, config, &manifest)
	defer func() { err = errors.Join(err, closeStores()) }()
	if err != nil {
		return manifest, err
	}
	files, err := clusterFiles(o.Dir, config)
	if err != nil {
		return manifest, err
	}
	written := storedata.NewTransfer(ctx, o.Display, "snapshot written", totalBytes(stores))
	for i := range stores {
		stores[i].Reader = io.TeeReader(stores[i].Reader, written)
	}
	manifest, err = archive.Write(target, manifest, append(files, stores...))
	if err == nil {
		err = commit(target, o.File)
	}
	written.End(err)
	return manifest, err
}

// readStores reads all stores of a cluster, one after the other, into files without names. It describes them in the
// manifest. The returned function closes the files, also after an error.
func readStores(ctx context.Context, o SaveOptions, config clusterdir.Config, manifest *archive.Manifest) (stores []archive.Content, closeAll func() error, err error) {
	var spools []*os.File
	closeAll = func() (err error) {
		for _, spool := range spools {
			err = errors.Join(err, spool.Close())
		}
		return err
	}
	for _, name := range config.Settings.StoreNames() {
		spool, err := unnamed(o.File)
		if err != nil {
			return nil, closeAll, err
		}
		spools = append(spools, spool)
		received := storedata.NewTransfer(ctx, o.Display, name+" read", 0)
		described, version, file, err := storeSnapshot(ctx, component.NewStoreClient(config, o.Dir, name), config.Settings.EtcdPrefix(), spool, received)
		received.End(err)
		if err == nil {
			_, err = spool.Seek(0, io.SeekStart)
		}
		if err != nil {
			return nil, closeAll, err
		}
		file.Name = archive.StoreFileOf(name)
		stores = append(stores, archive.Content{File: file, Reader: spool})
		manifest.AddStore(name, described)
		manifest.Versions.Store = version
	}
	manifest.Store.Kind = config.Settings.Store
	return stores, closeAll, nil
}

func totalBytes(files []archive.Content) (bytes int64) {
	for _, file := range files {
		bytes += file.Bytes
	}
	return bytes
}

// temporaryInfix follows the name of a snapshot in that of its temporary file. It is long, because k1m removes
// old files with such names from directories of users.
const temporaryInfix = ".k1m-partial-"

// temporaryFile creates a temporary file in the directory of a path, with the mode 0600 that private keys need.
// It removes those that processes left behind that were killed. [discard] removes the file.
func temporaryFile(path string) (*os.File, error) {
	file, err := temporary.File(filepath.Dir(path), "."+filepath.Base(path)+temporaryInfix)
	if err != nil {
		return nil, fmt.Errorf("writing to %s: %w", filepath.Dir(path), reason(err))
	}
	return file, nil
}

// unnamed creates a temporary file in the directory of a path that has no name, so the kernel removes it even if
// the process is killed.
func unnamed(path string) (*os.File, error) {
	file, err := temporaryFile(path)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(file.Name()); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// discard closes and removes a temporary file, unless [commit] has already renamed it.
func discard(file *os.File) error {
	err := os.Remove(file.Name())
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, file.Close())
}

// commit makes the content of a temporary file durable and gives the file its final name.
func commit(file *os.File, path string) error {
	if err := file.Sync(); err != nil {
		return err
	}
	if err := os.Rename(file.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// kubernetesVersion returns the version of the Kubernetes module with which k1m was built. The programs of a
// cluster are built from the same module.
func kubernetesVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			if module.Path == "k8s.io/kubernetes" {
				return module.Version
			}
		}
	}
	return "unknown"
}
