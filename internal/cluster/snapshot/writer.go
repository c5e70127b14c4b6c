package snapshot

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
)

const entryMode = 0o600

// content is a file with its content, which is to be written to a snapshot.
type content struct {
	File
	reader io.Reader
}

// inMemory returns a file whose content is in memory.
func inMemory(name string, data []byte) content {
	sum := sha256.Sum256(data)
	return content{File{name, int64(len(data)), hex.EncodeToString(sum[:])}, bytes.NewReader(data)}
}

// write writes a snapshot: the manifest, completed by the list of the files, and the files.
func write(w io.Writer, manifest Manifest, files []content) (Manifest, error) {
	manifest.Format = formatVersion
	if len(manifest.OwnStores) > 0 {
		manifest.Format = formatVersionOwnStores
	}
	for _, file := range files {
		manifest.Files = append(manifest.Files, file.File)
	}
	if err := manifest.validate(); err != nil {
		return manifest, err
	}
	encoded, err := json.MarshalIndent(manifest, "", "  ")
	if err != nil {
		return manifest, err
	}
	compressor, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		return manifest, err
	}
	defer compressor.Close()
	archive := tar.NewWriter(compressor)
	for _, file := range append([]content{inMemory(manifestFile, encoded)}, files...) {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: file.Name, Size: file.Bytes, Mode: entryMode, ModTime: manifest.Created}
		if err := archive.WriteHeader(header); err != nil {
			return manifest, err
		}
		if _, err := io.Copy(archive, file.reader); err != nil {
			return manifest, err
		}
	}
	return manifest, errors.Join(archive.Close(), compressor.Close())
}

// clusterFiles returns the files of a cluster other than its stores: the settings, the certificates and keys,
// and the file of --gateway-config. All other files are written again when the cluster is started.
func clusterFiles(dir clusterdir.Dir, config clusterdir.Config) ([]content, error) {
	// Ports are assigned when the cluster is restored.
	config.Ports = clusterdir.Ports{}
	encoded, err := config.Encode()
	if err != nil {
		return nil, err
	}
	files := []content{inMemory(clusterFile, encoded)}
	if source := config.Settings.GatewayConfig; source != "" {
		data, err := os.ReadFile(source)
		if err != nil {
			return nil, fmt.Errorf("reading the file of --gateway-config: %w", err)
		}
		files = append(files, inMemory(gatewayConfigFile, data))
	}
	pki, err := pkiFiles(dir.PKI())
	return append(files, pki...), err
}

// pkiFiles returns the certificates and keys, sorted by name. It omits those of the scheduler replicas, which
// are created when the cluster is started. With their own certificate authority, the replicas of the restored
// cluster cannot connect to those of the saved one, whose addresses are in the store.
func pkiFiles(dir string) ([]content, error) {
	var files []content
	err := filepath.WalkDir(dir, func(source string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		name := path.Join(pkiPrefix, filepath.ToSlash(strings.TrimPrefix(source, dir)))
		if !pkiName.MatchString(name) || strings.HasPrefix(name, pkiPrefix+"replica-") {
			return nil
		}
		data, err := os.ReadFile(source)
		if err != nil {
			return err
		}
		files = append(files, inMemory(name, data))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading certificates and keys: %w", err)
	}
	slices.SortFunc(files, func(a, b content) int { return strings.Compare(a.Name, b.Name) })
	return files, nil
}
