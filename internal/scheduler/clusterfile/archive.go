package clusterfile

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/k8s-1m/k8s-1m/internal/cluster/snapshot/archive"
)

const (
	zstdMagic = "\x28\xB5\x2F\xFD"
	// maxStoreBytes limits the temporary files with the stores of a snapshot of k1m.
	maxStoreBytes = 64 << 30
)

// readArchive reads the stores in a snapshot of k1m (`k1m snapshot save`).
func readArchive(r io.Reader, objects *Objects, source string) (err error) {
	reader, err := archive.NewReader(r)
	if err != nil {
		return fmt.Errorf("%s: reading a snapshot of k1m: %w", source, firstLine(err))
	}
	defer reader.Close()
	if size := reader.Manifest.StoreBytes(); size > maxStoreBytes {
		return fmt.Errorf("%s: the stores in the snapshot of k1m have %d GiB; at most %d GiB are read", source, size>>30, int64(maxStoreBytes)>>30)
	}
	var stores []*storeCopy
	defer func() {
		for _, store := range stores {
			err = errors.Join(err, store.file.Close())
		}
	}()
	err = reader.Extract(func(file archive.File) (io.WriteCloser, error) {
		if !file.IsStore() {
			return nopCloser{io.Discard}, nil
		}
		copied, err := unnamedFile()
		if err != nil {
			return nil, err
		}
		stores = append(stores, &storeCopy{file, copied})
		return nopCloser{copied}, nil
	}, io.Discard)
	if err != nil {
		return fmt.Errorf("%s: reading a snapshot of k1m: %w", source, firstLine(err))
	}
	for _, store := range stores {
		if err := readSnapshotFile(store.file, store.Bytes, objects, source+": "+store.Name); err != nil {
			return err
		}
	}
	return nil
}

// storeCopy is a store in a snapshot of k1m, with the temporary file to which it was copied.
type storeCopy struct {
	archive.File
	file *os.File
}

// nopCloser is a writer that stays open when it is closed.
type nopCloser struct{ io.Writer }

// Close implements [io.Closer].
func (nopCloser) Close() error { return nil }

// readSnapshotFile reads a snapshot of etcd or mem_etcd. It verifies the checksum at its end, which snapshots have that a
// client received from a store.
func readSnapshotFile(file *os.File, size int64, objects *Objects, source string) error {
	if err := verifyEnd(file, size); err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}
	head := make([]byte, peekBytes)
	n, err := file.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: %w", source, err)
	}
	switch head = head[:n]; {
	case isBolt(head) && size%alignment != 0 && size%alignment != hashBytes:
		return fmt.Errorf("%s: the snapshot was cut off: its size of %d bytes is not that of a complete one; take another snapshot", source, size)
	case isBolt(head):
		return readEtcd(file, size, objects, source)
	case isMemEtcd(head):
		return readMemEtcd(bufio.NewReaderSize(io.NewSectionReader(file, 0, size), bufferBytes), size, objects, source)
	}
	return fmt.Errorf("%s: it is neither a snapshot of etcd nor of mem_etcd", source)
}

// isMemEtcd returns whether a file that begins with these bytes is a snapshot of mem_etcd.
func isMemEtcd(head []byte) bool {
	return len(head) > len(memEtcdMagic) && string(head[:len(memEtcdMagic)]) == memEtcdMagic
}

const (
	hashBytes = sha256.Size
	alignment = 512
)

// verifyEnd verifies the SHA-256 at the end of a file whose size shows that it has one.
func verifyEnd(file io.ReaderAt, size int64) error {
	if size%alignment != hashBytes {
		return nil
	}
	sum, want := sha256.New(), make([]byte, hashBytes)
	if _, err := io.Copy(sum, io.NewSectionReader(file, 0, size-hashBytes)); err != nil {
		return err
	}
	if _, err := file.ReadAt(want, size-hashBytes); err != nil {
		return err
	}
	if string(sum.Sum(nil)) != string(want) {
		return errors.New("the checksum at the end of the snapshot is wrong; take another snapshot")
	}
	return nil
}

// unnamedFile returns a new file that was removed from its directory: it vanishes when it is closed, also if the process is
// killed. A snapshot has Secrets.
func unnamedFile() (*os.File, error) {
	file, err := os.CreateTemp("", "cluster-snapshot-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(file.Name()); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// toTemporaryFile copies a stream to an unnamed file.
func toTemporaryFile(r io.Reader) (*os.File, int64, error) {
	file, err := unnamedFile()
	if err != nil {
		return nil, 0, err
	}
	size, err := io.Copy(file, r)
	if err != nil {
		_ = file.Close()
		return nil, 0, firstLine(err)
	}
	return file, size, nil
}
