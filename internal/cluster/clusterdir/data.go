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

// DataFormat is the content of format.json, which marks a data directory with the store
// that owns it, so that another store or an incompatible k1m refuses to use it.
type DataFormat struct {
	Version int    `json:"version"`
	Store   string `json:"store"`
}

// StoreDir is the directory of a store within a data directory.
func StoreDir(dataDir, store string) string { return filepath.Join(dataDir, store) }

// LockData locks a data directory against use by a second cluster.
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
		return fmt.Errorf("reading the data's format: %w", err)
	}
	return checkFormat(dataDir, path, content, store)
}

func checkFormat(dataDir, path string, content []byte, store string) error {
	var format DataFormat
	if err := json.Unmarshal(content, &format); err != nil {
		return fmt.Errorf("%s is damaged: %w; choose another --data-dir, or start over with `k1m down`", path, err)
	}
	if format.Version != dataVersion {
		return fmt.Errorf("data directory %s has version %d, this k1m supports %d; use the k1m that created it or choose another --data-dir",
			dataDir, format.Version, dataVersion)
	}
	if format.Store != store {
		return fmt.Errorf("data directory %s belongs to %s, not %s; choose another --data-dir",
			dataDir, format.Store, store)
	}
	return nil
}
