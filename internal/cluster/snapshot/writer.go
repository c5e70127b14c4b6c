package snapshot

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/snapshot/archive"
)

// clusterFiles returns the files of a cluster other than its stores: the settings, the certificates and keys,
// and the file of --gateway-config. All other files are written again when the cluster is started.
func clusterFiles(dir clusterdir.Dir, config clusterdir.Config) ([]archive.Content, error) {
	// Ports are assigned when the cluster is restored.
	config.Ports = clusterdir.Ports{}
	encoded, err := config.Encode()
	if err != nil {
		return nil, err
	}
	files := []archive.Content{archive.InMemory(archive.ClusterFile, encoded)}
	if source := config.Settings.GatewayConfig; source != "" {
		data, err := os.ReadFile(source)
		if err != nil {
			return nil, fmt.Errorf("reading the file of --gateway-config: %w", err)
		}
		files = append(files, archive.InMemory(archive.GatewayConfigFile, data))
	}
	pki, err := pkiFiles(dir.PKI())
	return append(files, pki...), err
}

// pkiFiles returns the certificates and keys, sorted by name. It omits those of the scheduler replicas, which
// are created when the cluster is started. With their own certificate authority, the replicas of the restored
// cluster cannot connect to those of the saved one, whose addresses are in the store.
func pkiFiles(dir string) ([]archive.Content, error) {
	var files []archive.Content
	err := filepath.WalkDir(dir, func(source string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		name := path.Join(archive.PKIPrefix, filepath.ToSlash(strings.TrimPrefix(source, dir)))
		if !archive.IsPKIFile(name) || strings.HasPrefix(name, archive.PKIPrefix+"replica-") {
			return nil
		}
		data, err := os.ReadFile(source)
		if err != nil {
			return err
		}
		files = append(files, archive.InMemory(name, data))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading certificates and keys: %w", err)
	}
	slices.SortFunc(files, func(a, b archive.Content) int { return strings.Compare(a.Name, b.Name) })
	return files, nil
}
