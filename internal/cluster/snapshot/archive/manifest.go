package archive

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
)

// ErrInvalid means that a file is not a snapshot, is damaged or was manipulated.
var ErrInvalid = errors.New("not a valid snapshot")

// Invalid returns an error that wraps ErrInvalid.
func Invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrInvalid, fmt.Errorf(format, args...))
}

// Versions of the file format. The version is incremented by each change that an older k1m cannot read.
const (
	formatVersion = 1
	// formatVersionOwnStores is the version of a file with several stores, and the latest one.
	formatVersionOwnStores = 2
)

// Names of the files in a snapshot. Certificates and keys are in PKIPrefix.
const (
	ManifestFile      = "manifest.json"
	ClusterFile       = "cluster.json"
	GatewayConfigFile = "gateway-config.yaml"
	PKIPrefix         = "pki/"
	// StoreFile is the snapshot of the main store.
	StoreFile   = "store" + storeSuffix
	storeSuffix = ".snapshot"
)

// StoreFileOf returns the name of the snapshot of a store with the given component name.
func StoreFileOf(store string) string { return store + storeSuffix }

const (
	maxManifestBytes = 1 << 20
	// maxFileBytes limits all files but the snapshots of the stores.
	maxFileBytes = 1 << 20
	// maxStoreBytes is far above what a store can hold. A restore also requires the free disk space.
	maxStoreBytes = 1 << 46
	maxFiles      = 1024
	sha256Digits  = 64
)

var (
	ownFile  = regexp.MustCompile(`^store-[a-z]{1,63}\.snapshot$`)
	pkiName  = regexp.MustCompile(`^pki/(etcd/)?[a-z0-9][a-z0-9.-]{0,99}\.(crt|key|pub)$`)
	checksum = regexp.MustCompile(fmt.Sprintf(`^[0-9a-f]{%d}$`, sha256Digits))
)

// Manifest describes a snapshot. It is the first entry of the file.
type Manifest struct {
	Format   int       `json:"format"` // version of the file format
	Name     string    `json:"name"`   // name of the cluster that was saved
	Created  time.Time `json:"created"`
	Versions Versions  `json:"versions"`
	Store    Store     `json:"store"`
	// OwnStores are the stores of single resources.
	OwnStores []OwnStore `json:"ownStores,omitempty"`
	Files     []File     `json:"files"` // in the order of the entries after the manifest
}

// Versions are the versions of the programs of the saved cluster.
type Versions struct {
	K1m        string `json:"k1m"`
	Kubernetes string `json:"kubernetes"`
	Store      string `json:"store"`
}

// Store describes the content of the main store in a snapshot. mem_etcd states the revision of the snapshot. etcd
// does not: then the revision and the numbers are those immediately before, and the snapshot may also
// contain later changes.
type Store struct {
	Kind     string `json:"kind"` // mem_etcd or etcd, also of own stores
	Revision int64  `json:"revision"`
	// Keys are those of all stores. So are Nodes and Pods.
	Keys  int64 `json:"keys"`
	Nodes int64 `json:"nodes"`
	Pods  int64 `json:"pods"`
}

// OwnStore describes the content of the own store of a resource, as Store that of the main store.
type OwnStore struct {
	Resource string `json:"resource"`
	Revision int64  `json:"revision"`
	Keys     int64  `json:"keys"`
}

// storeFiles returns the names of the snapshots of all stores.
func (m Manifest) storeFiles() []string {
	names := []string{StoreFile}
	for _, own := range m.OwnStores {
		names = append(names, StoreFileOf(clusterdir.OwnStoreName(own.Resource)))
	}
	return names
}

// Resources returns the resources with an own store.
func (m Manifest) Resources() (names []string) {
	for _, own := range m.OwnStores {
		names = append(names, own.Resource)
	}
	return names
}

// AddStore adds the description of a store with the given component name.
func (m *Manifest) AddStore(name string, s Store) {
	m.Store.Keys, m.Store.Nodes, m.Store.Pods = m.Store.Keys+s.Keys, m.Store.Nodes+s.Nodes, m.Store.Pods+s.Pods
	if name == clusterdir.MainStore {
		m.Store.Revision = s.Revision
		return
	}
	m.OwnStores = append(m.OwnStores, OwnStore{Resource: clusterdir.ResourceOf(name), Revision: s.Revision, Keys: s.Keys})
}

// File is an entry after the manifest.
type File struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// StoreBytes returns the size of the snapshots of all stores.
func (m Manifest) StoreBytes() (bytes int64) {
	for _, file := range m.Files {
		if file.IsStore() {
			bytes += file.Bytes
		}
	}
	return bytes
}

// validate returns an error unless this k1m can restore a snapshot with this manifest.
func (m Manifest) validate() error {
	switch {
	case m.Format < 1:
		return Invalid("its manifest has no format version")
	case m.Format > formatVersionOwnStores:
		return fmt.Errorf("the snapshot has format %d, but this k1m supports format %d; use the k1m that saved it", m.Format, formatVersionOwnStores)
	case m.Store.Kind != clusterdir.StoreMemEtcd && m.Store.Kind != clusterdir.StoreEtcd:
		return Invalid("its manifest has the unknown store %q", m.Store.Kind)
	case len(m.Files) > maxFiles:
		return Invalid("its manifest lists %d files, at most %d are allowed", len(m.Files), maxFiles)
	}
	seen := map[string]bool{}
	for _, file := range m.Files {
		if err := file.validate(); err != nil {
			return err
		}
		if seen[file.Name] {
			return Invalid("its manifest lists %q twice", file.Name)
		}
		if file.IsStore() && !slices.Contains(m.storeFiles(), file.Name) {
			return Invalid("its manifest lists %q, but not that store", file.Name)
		}
		seen[file.Name] = true
	}
	for _, required := range append([]string{ClusterFile, PKIPrefix + "ca.crt", PKIPrefix + "ca.key"}, m.storeFiles()...) {
		if !seen[required] {
			return Invalid("its manifest lacks %s", required)
		}
	}
	return nil
}

// IsStore reports whether the file is the snapshot of a store.
func (f File) IsStore() bool { return f.Name == StoreFile || ownFile.MatchString(f.Name) }

// IsPKIFile reports whether a name is that of a certificate or key in a snapshot.
func IsPKIFile(name string) bool { return pkiName.MatchString(name) }

// validate returns an error for a name that no snapshot contains, such as a path to another directory, and
// for an impossible size.
func (f File) validate() error {
	limit := int64(maxFileBytes)
	switch {
	case f.IsStore():
		limit = maxStoreBytes
	case f.Name != ClusterFile && f.Name != GatewayConfigFile && !IsPKIFile(f.Name):
		return Invalid("its manifest lists the unexpected file %.100q", f.Name)
	}
	if f.Bytes < 0 || f.Bytes > limit {
		return Invalid("its manifest has the size %d for %s, at most %d is allowed", f.Bytes, f.Name, limit)
	}
	if !checksum.MatchString(f.SHA256) {
		return Invalid("its manifest has no checksum of %s", f.Name)
	}
	return nil
}

// Print writes the manifest for users.
func (m Manifest) Print(w io.Writer) {
	total := int64(0)
	for _, file := range m.Files {
		total += file.Bytes
	}
	fmt.Fprintf(w, "Cluster:     %s\n", m.Name)
	fmt.Fprintf(w, "Created:     %s\n", m.Created.Format(time.RFC3339))
	fmt.Fprintf(w, "Store:       %s %s, revision %d, %d keys\n", m.Store.Kind, m.Versions.Store, m.Store.Revision, m.Store.Keys)
	for _, own := range m.OwnStores {
		fmt.Fprintf(w, "             of them %d %s in their own store, revision %d\n", own.Keys, own.Resource, own.Revision)
	}
	fmt.Fprintf(w, "Nodes:       %d\n", m.Store.Nodes)
	fmt.Fprintf(w, "Pods:        %d\n", m.Store.Pods)
	fmt.Fprintf(w, "Kubernetes:  %s\n", m.Versions.Kubernetes)
	fmt.Fprintf(w, "k1m:         %s\n", m.Versions.K1m)
	fmt.Fprintf(w, "Format:      %d\n", m.Format)
	fmt.Fprintf(w, "Content:     %d files, %.1f MiB uncompressed\n", len(m.Files), float64(total)/(1<<20))
}
