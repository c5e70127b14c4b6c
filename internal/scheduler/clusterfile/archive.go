package clusterfile

import (
	"archive/tar"
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"

	"github.com/klauspost/compress/zstd"
)

const (
	zstdMagic        = "\x28\xB5\x2F\xFD"
	manifestName     = "manifest.json"
	maxManifestBytes = 1 << 20
	// maxWindowBytes limits the memory of the decoder.
	maxWindowBytes = 64 << 20
	// maxStoreBytes limits the temporary file with a store.
	maxStoreBytes = 64 << 30
	// maxEntries is the largest number of files in a snapshot of k1m.
	maxEntries = 1025
)

// storeEntry are the names of the snapshots of stores in a snapshot of k1m.
var storeEntry = regexp.MustCompile(`^store(-[a-z]{1,63})?\.snapshot$`)

// readArchive reads the stores in a snapshot of k1m (`k1m snapshot save`).
func readArchive(r io.Reader, objects *Objects, source string) error {
	decoder, err := zstd.NewReader(r, zstd.WithDecoderMaxWindow(maxWindowBytes), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}
	defer decoder.Close()
	a := &archive{Reader: tar.NewReader(decoder), source: source}
	if err := a.readManifest(); err != nil {
		return fmt.Errorf("%s: it is no snapshot of k1m: %w", source, firstLine(err))
	}
	stores := 0
	for range maxEntries {
		header, err := a.Next()
		if errors.Is(err, io.EOF) && stores > 0 {
			return a.readEnd(decoder)
		}
		if errors.Is(err, io.EOF) {
			err = errors.New("it has no store")
		}
		if err != nil {
			return fmt.Errorf("%s: the snapshot of k1m is damaged: %w", source, firstLine(err))
		}
		if header.Typeflag != tar.TypeReg || !storeEntry.MatchString(header.Name) {
			continue
		}
		if header.Size > maxStoreBytes {
			return fmt.Errorf("%s: %s is larger than %d GiB", source, header.Name, int64(maxStoreBytes)>>30)
		}
		if err := a.readStore(header.Name, objects); err != nil {
			return err
		}
		stores++
	}
	return fmt.Errorf("%s: the snapshot of k1m is damaged: it has more than %d files", source, maxEntries)
}

// archive is a snapshot of k1m.
type archive struct {
	*tar.Reader
	source string
	// sums are the checksums in the manifest, by file.
	sums map[string]string
}

func (a *archive) readManifest() error {
	header, err := a.Next()
	if err != nil {
		return err
	}
	if header.Name != manifestName || header.Size > maxManifestBytes {
		return fmt.Errorf("its first file is not %s", manifestName)
	}
	var manifest struct {
		Files []struct{ Name, SHA256 string }
	}
	content, err := io.ReadAll(a.Reader)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(content, &manifest); err != nil {
		return err
	}
	a.sums = map[string]string{}
	for _, file := range manifest.Files {
		a.sums[file.Name] = file.SHA256
	}
	return nil
}

// maxEndBytes is more than an archive has after its last file.
const maxEndBytes = 1 << 20

// readEnd reads what follows the last file: the checksum of the compressed data is verified at its end.
func (a *archive) readEnd(r io.Reader) error {
	rest, err := io.Copy(io.Discard, io.LimitReader(r, maxEndBytes))
	if err == nil && rest == maxEndBytes {
		err = errors.New("it continues after its end")
	}
	if err != nil {
		return fmt.Errorf("%s: the snapshot of k1m is damaged: %w", a.source, firstLine(err))
	}
	return nil
}

// readStore copies the snapshot of a store to a temporary file, verifies its checksum, and reads it.
func (a *archive) readStore(name string, objects *Objects) error {
	source := a.source + ": " + name
	sum := sha256.New()
	file, size, err := toTemporaryFile(io.TeeReader(a.Reader, sum))
	if err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}
	defer file.Close()
	if hex.EncodeToString(sum.Sum(nil)) != a.sums[name] {
		return fmt.Errorf("%s: the checksum is wrong; the snapshot of k1m is damaged", source)
	}
	return readSnapshotFile(file, size, objects, source)
}

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

// toTemporaryFile copies a stream to a file that was removed from its directory: it vanishes when it is closed, also if the
// process is killed. A snapshot has Secrets.
func toTemporaryFile(r io.Reader) (*os.File, int64, error) {
	file, err := os.CreateTemp("", "cluster-snapshot-")
	if err != nil {
		return nil, 0, err
	}
	if err := os.Remove(file.Name()); err != nil {
		_ = file.Close()
		return nil, 0, err
	}
	size, err := io.Copy(file, r)
	if err != nil {
		_ = file.Close()
		return nil, 0, firstLine(err)
	}
	return file, size, nil
}
