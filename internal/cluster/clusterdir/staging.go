package clusterdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/k8s-1m/k8s-1m/internal/util/temporary"
)

// ErrExists means that the directory of a cluster exists already.
var ErrExists = errors.New("already exists")

// Staging is a directory that is filled before it becomes the directory of a cluster. Its name starts with a
// dot, so it is neither listed as a cluster nor the name of one.
type Staging struct {
	Dir
	target Dir
	// lock shows that the directory is in use.
	lock *os.File
}

// RequireNew returns an error that wraps ErrExists, with the remedy, if the directory of the cluster exists.
func (d Dir) RequireNew() error {
	if _, err := os.Lstat(d.Root()); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("reading the cluster's directory: %w", err)
	}
	return fmt.Errorf("cluster %q %w; choose another name, or remove it with `k1m down --name %s`", d.name, ErrExists, d.name)
}

// Stage creates an empty directory beside the directories of the clusters. It removes those that processes left
// behind that were killed, because they contain private keys. The caller closes the Staging.
func (d Dir) Stage() (*Staging, error) {
	clusters := filepath.Dir(d.Root())
	if err := os.MkdirAll(clusters, privateDirMode); err != nil {
		return nil, fmt.Errorf("creating %s: %w", clusters, err)
	}
	lock, err := temporary.Dir(clusters, "."+d.name+"-")
	if err != nil {
		return nil, fmt.Errorf("creating a directory in %s: %w", clusters, err)
	}
	return &Staging{Dir: Dir{home: d.home, name: filepath.Base(lock.Name())}, target: d, lock: lock}, nil
}

// Close gives up the directory. Unless it was published, the next Stage removes what is left of it.
func (s *Staging) Close() error { return s.lock.Close() }

// Publish makes the directory that of the cluster. The caller holds the operation lock of the cluster.
func (s *Staging) Publish() error {
	if err := s.target.RequireNew(); err != nil {
		return err
	}
	if err := os.Rename(s.Root(), s.target.Root()); err != nil {
		return fmt.Errorf("creating the cluster's directory: %w", err)
	}
	return nil
}
