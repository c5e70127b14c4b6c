package clusterdir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// dataVersion is the version of the data directory's layout.
const dataVersion = 1

// DataFormat is the content of format.json in a data directory. k1m refuses to use the directory for
// another store, or if it does not support this version of the layout.
type DataFormat struct {
	Version int    `json:"version"`
	Store   string `json:"store"`
}

// StoreDir returns the directory of a store within a data directory.
func StoreDir(dataDir, store string) string { return filepath.Join(dataDir, store) }

// LockData locks a data directory, so that only one cluster uses it.
func LockData(dataDir string) (*Lock, error) {
	lock, err := tryLock(filepath.Join(dataDir, "lock"))
	if errors.Is(err, ErrBusy) {
		return nil, fmt.Errorf("data directory %s is in use (%w); stop that cluster or choose another --data-dir", dataDir, err)
	}
	return lock, err
}

// PrepareData creates a data directory for a store. It fails if the directory belongs to
// another store or has an unsupported version.
func PrepareData(dataDir, store string) error {
	if err := os.MkdirAll(StoreDir(dataDir, store), privateDirMode); err != nil {
		return fmt.Errorf("creating the data directory: %w; choose another --data-dir", err)
	}
	path := filepath.Join(dataDir, "format.json")
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		content, err = json.Marshal(DataFormat{Version: dataVersion, Store: store})
		if err != nil {
			return err
		}
		return WriteFileAtomic(path, append(content, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("reading the format of the data directory: %w", err)
	}
	return checkFormat(dataDir, path, content, store)
}

// checkFormat returns an error unless content, read from path, allows this k1m to use the directory for
// the store.
func checkFormat(dataDir, path string, content []byte, store string) error {
	var format DataFormat
	if err := json.Unmarshal(content, &format); err != nil {
		return fmt.Errorf("%s is damaged: %w; choose another --data-dir, or start over with `k1m down`", path, err)
	}
	if format.Version != dataVersion {
		return fmt.Errorf("data directory %s has version %d, but this k1m supports version %d; use the k1m that created it or choose another --data-dir",
			dataDir, format.Version, dataVersion)
	}
	if format.Store != store {
		return fmt.Errorf("data directory %s belongs to %s, not %s; choose another --data-dir",
			dataDir, format.Store, store)
	}
	return nil
}
