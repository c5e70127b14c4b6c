package clusterdir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/k8s-1m/k8s-1m/internal/util/atomicfile"
)

// Versions of the data directory's layout. An older k1m does not know own stores or members, and would not find their
// objects.
const (
	dataVersion          = 1
	dataVersionOwnStores = 2
	dataVersionMembers   = 3
)

// DataFormat is the content of format.json in a data directory. k1m refuses to use the directory for
// other stores, or if it does not support this version of the layout.
type DataFormat struct {
	Version int    `json:"version"`
	Store   string `json:"store"`
	// Own are the resources that have an own store, sorted.
	Own []string `json:"own,omitempty"`
	// Members is the number of members of the store, if it has several.
	Members int `json:"members,omitempty"`
}

// newDataFormat returns the format of the data of a cluster with these settings.
func newDataFormat(s Settings) DataFormat {
	format := DataFormat{Version: dataVersion, Store: s.Store, Own: s.OwnStores()}
	if len(format.Own) > 0 {
		format.Version = dataVersionOwnStores
	}
	if s.HasStoreReplicas() {
		format.Version, format.Members = dataVersionMembers, s.StoreReplicas
	}
	return format
}

// StoreDir returns the directory of a store within a data directory. store is its component name, or that of a member.
func (s *Settings) StoreDir(dataDir, store string) string {
	return filepath.Join(dataDir, s.Store+strings.TrimPrefix(store, MainStore))
}

// LockData locks a data directory, so that only one cluster uses it.
func LockData(dataDir string) (*Lock, error) {
	lock, err := tryLock(filepath.Join(dataDir, "lock"))
	if errors.Is(err, ErrBusy) {
		return nil, fmt.Errorf("data directory %s is in use (%w); stop that cluster or choose another --data-dir", dataDir, err)
	}
	return lock, err
}

// PrepareData creates a data directory for the stores of a cluster with these settings. It fails if the directory
// belongs to other stores or has an unsupported version.
func PrepareData(dataDir string, s Settings) error {
	if err := os.MkdirAll(dataDir, privateDirMode); err != nil {
		return dataDirError(err)
	}
	wanted, path := newDataFormat(s), filepath.Join(dataDir, "format.json")
	content, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if content, err = json.Marshal(wanted); err != nil {
			return err
		}
		if err = atomicfile.Write(path, append(content, '\n'), 0o600); err != nil {
			return err
		}
	case err != nil:
		return fmt.Errorf("reading the format of the data directory: %w", err)
	default:
		if err = checkFormat(dataDir, path, content, wanted); err != nil {
			return err
		}
	}
	for _, store := range s.StoreComponents() {
		if err := os.MkdirAll(s.StoreDir(dataDir, store), privateDirMode); err != nil {
			return dataDirError(err)
		}
	}
	return nil
}

func dataDirError(err error) error {
	return fmt.Errorf("creating the data directory: %w; choose another --data-dir", err)
}

// checkFormat returns an error unless content, read from path, is the wanted format.
func checkFormat(dataDir, path string, content []byte, wanted DataFormat) error {
	var format DataFormat
	if err := json.Unmarshal(content, &format); err != nil {
		return fmt.Errorf("%s is damaged: %w; choose another --data-dir, or start over with `k1m down`", path, err)
	}
	switch {
	case format.Version < dataVersion || format.Version > dataVersionMembers:
		return fmt.Errorf("data directory %s has version %d, but this k1m supports version %d; use the k1m that created it or choose another --data-dir",
			dataDir, format.Version, dataVersionMembers)
	case format.Store != wanted.Store:
		return fmt.Errorf("data directory %s belongs to %s, not %s; choose another --data-dir",
			dataDir, format.Store, wanted.Store)
	case !slices.Equal(format.Own, wanted.Own):
		return fmt.Errorf("data directory %s has %s, and the settings have %s: k1m does not move objects between stores; set --store-for as before, or choose another --data-dir, or start over with `k1m down`",
			dataDir, describeOwn(format.Own), describeOwn(wanted.Own))
	case format.Members != wanted.Members:
		return fmt.Errorf("data directory %s belongs to a store with %d members, and the settings have %d: set --store-replicas as before, or choose another --data-dir, or start over with `k1m down`",
			dataDir, max(1, format.Members), max(1, wanted.Members))
	}
	return nil
}

// describeOwn describes own stores for users.
func describeOwn(resources []string) string {
	if len(resources) == 0 {
		return "no own stores"
	}
	return "own stores for " + strings.Join(resources, ", ")
}
