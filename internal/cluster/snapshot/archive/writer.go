package archive

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"

	"github.com/klauspost/compress/zstd"
)

// EntryMode is the mode of the files in a snapshot, some of which are private keys.
const EntryMode = 0o600

// Content is a file with its content, which is to be written to a snapshot.
type Content struct {
	File
	Reader io.Reader
}

// InMemory returns a file whose content is in memory.
func InMemory(name string, data []byte) Content {
	sum := sha256.Sum256(data)
	return Content{File{name, int64(len(data)), hex.EncodeToString(sum[:])}, bytes.NewReader(data)}
}

// Write writes a snapshot: the manifest, completed by the list of the files, and the files.
func Write(w io.Writer, manifest Manifest, files []Content) (Manifest, error) {
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
	for _, file := range append([]Content{InMemory(ManifestFile, encoded)}, files...) {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: file.Name, Size: file.Bytes, Mode: EntryMode, ModTime: manifest.Created}
		if err := archive.WriteHeader(header); err != nil {
			return manifest, err
		}
		if _, err := io.Copy(archive, file.Reader); err != nil {
			return manifest, err
		}
	}
	return manifest, errors.Join(archive.Close(), compressor.Close())
}
