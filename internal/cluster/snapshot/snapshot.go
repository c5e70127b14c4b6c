// Package snapshot saves a whole cluster in one file and creates a cluster from such a file.
//
// A snapshot file is a tar archive that is compressed with zstd. Its first entry is the [archive.Manifest], which
// lists all other entries with their sizes and checksums: the settings of the cluster, its certificates and
// keys, and a snapshot of each of its stores. [Save] writes a file, [Inspect] reads its manifest, and [Restore]
// creates a cluster.
//
// Package archive knows the format of the file only. storeSnapshot gets the snapshot of the store through
// etcd's API, and restoreStore creates a data directory with the store's own tool.
package snapshot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/k8s-1m/k8s-1m/internal/cluster/snapshot/archive"
)

// Inspect returns the manifest of a snapshot file. It does not read the rest of the file.
func Inspect(path string) (archive.Manifest, error) {
	file, reader, err := open(path)
	if err != nil {
		return archive.Manifest{}, err
	}
	defer file.Close()
	defer reader.Close()
	return reader.Manifest, nil
}

// open opens a snapshot file and reads its manifest. The caller closes both.
func open(path string) (*os.File, *archive.Reader, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, reason(err))
	}
	reader, err := archive.NewReader(file)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("%s: %w", path, err), file.Close())
	}
	return file, reader, nil
}

// reason returns the cause of a file system error, without the operation and the path.
func reason(err error) error {
	var failed *fs.PathError
	if errors.As(err, &failed) {
		return failed.Err
	}
	return err
}
