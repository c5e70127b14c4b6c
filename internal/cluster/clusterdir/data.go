package clusterdir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

const dataVersion = 1

// DataFormat is written beside the store's data, so that another store, or
// another k1m, does not mistake it for its own.
type DataFormat struct {
	Version int    `json:"version"`
	Store   string `json:"store"`
}

// StoreDir is the store's own folder within a data directory.
func StoreDir(dataDir, store string) string { return filepath.Join(dataDir, store) }

// LockData keeps a second cluster off a data directory.
func LockData(dataDir string) (*Lock, error) {
	lock, err := tryLock(filepath.Join(dataDir, "lock"))
	if errors.Is(err, ErrBusy) {
		return nil, fmt.Errorf("data directory %s is in use (%w); stop that cluster or choose another --data-dir", dataDir, err)
	}
	return lock, err
}

// PrepareData claims a data directory for a store, or says why it cannot.
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
		return fmt.Errorf("data directory %s is of version %d, this k1m knows %d; use the k1m that made it or choose another --data-dir",
			dataDir, format.Version, dataVersion)
	}
	if format.Store != store {
		return fmt.Errorf("data directory %s belongs to %s, not %s; choose another --data-dir",
			dataDir, format.Store, store)
	}
	return nil
}
