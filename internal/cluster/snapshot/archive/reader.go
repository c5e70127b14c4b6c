// Package archive is the format of the files of package snapshot: a tar archive that is compressed with zstd. [Write]
// writes one, and [Reader] reads one that is not trusted.
package archive

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"

	"github.com/klauspost/compress/zstd"
)

const (
	// maxWindowBytes limits the memory of the decoder. [Write] uses a smaller window.
	maxWindowBytes = 64 << 20
	// entryOverhead is more than the bytes of an archive for one entry in addition to its content.
	entryOverhead = 8 << 10
	// endOverhead is more than the bytes after the last entry.
	endOverhead = 64 << 10
)

// errTooLong means that an archive contains more than its manifest states.
var errTooLong = errors.New("the archive contains more than its manifest states")

// Reader reads a snapshot. It trusts nothing in the file: it reads at most as many bytes as the manifest
// states, and accepts only regular files with the names, sizes and checksums in the manifest.
type Reader struct {
	Manifest Manifest
	decoder  *zstd.Decoder
	budget   *budget
	archive  *tar.Reader
}

// NewReader reads the manifest. The caller closes the Reader.
func NewReader(r io.Reader) (*Reader, error) {
	decoder, err := zstd.NewReader(r, zstd.WithDecoderMaxWindow(maxWindowBytes), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, Invalid("%w", err)
	}
	reader := &Reader{decoder: decoder, budget: &budget{reader: decoder, left: maxManifestBytes + entryOverhead}}
	reader.archive = tar.NewReader(reader.budget)
	if err := reader.readManifest(); err != nil {
		decoder.Close()
		return nil, err
	}
	reader.budget.left += endOverhead
	for _, file := range reader.Manifest.Files {
		reader.budget.left += file.Bytes + entryOverhead
	}
	return reader, nil
}

// Close frees the resources of the decoder.
func (r *Reader) Close() { r.decoder.Close() }

func (r *Reader) readManifest() error {
	header, err := r.archive.Next()
	if err != nil {
		return Invalid("reading its manifest: %w", err)
	}
	if header.Name != ManifestFile || header.Typeflag != tar.TypeReg || header.Size > maxManifestBytes {
		return Invalid("its first entry is not %s", ManifestFile)
	}
	content, err := io.ReadAll(r.archive)
	if err != nil {
		return Invalid("reading its manifest: %w", err)
	}
	if err := json.Unmarshal(content, &r.Manifest); err != nil {
		return Invalid("reading its manifest: %w", err)
	}
	return r.Manifest.validate()
}

// Extract reads all files and verifies their checksums. It writes the content of each file to the writer
// that create returns, and closes the writer. read is told how many bytes were read.
func (r *Reader) Extract(create func(File) (io.WriteCloser, error), read io.Writer) error {
	for _, file := range r.Manifest.Files {
		if err := r.extract(file, create, read); err != nil {
			return err
		}
	}
	header, err := r.archive.Next()
	if err == nil {
		return Invalid("it contains %.100q, which is not in its manifest", header.Name)
	}
	if !errors.Is(err, io.EOF) {
		return Invalid("reading its end: %w", err)
	}
	// The checksum of the compressed data is verified at its end.
	if _, err := io.Copy(io.Discard, r.budget); err != nil {
		return Invalid("reading its end: %w", err)
	}
	return nil
}

func (r *Reader) extract(file File, create func(File) (io.WriteCloser, error), read io.Writer) (err error) {
	header, err := r.archive.Next()
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return Invalid("reading %s: %w", file.Name, err)
	}
	if header.Name != file.Name || header.Typeflag != tar.TypeReg || header.Size != file.Bytes {
		return Invalid("an entry does not match %s in its manifest", file.Name)
	}
	target, err := create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	sum := sha256.New()
	written := &writeError{writer: io.MultiWriter(target, sum, read)}
	if _, err := io.Copy(written, r.archive); err != nil {
		if written.err != nil {
			return written.err
		}
		return Invalid("reading %s: %w", file.Name, err)
	}
	if hex.EncodeToString(sum.Sum(nil)) != file.SHA256 {
		return Invalid("the checksum of %s is wrong", file.Name)
	}
	return nil
}

// budget fails when more bytes are read than are left.
type budget struct {
	reader io.Reader
	left   int64
}

func (b *budget) Read(p []byte) (int, error) {
	if b.left <= 0 {
		// The end of the data is not an error.
		var more [1]byte
		n, err := b.reader.Read(more[:])
		if n > 0 {
			return 0, errTooLong
		}
		return 0, err
	}
	n, err := b.reader.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// writeError remembers the error of a writer, to distinguish it from an error of the reader.
type writeError struct {
	writer io.Writer
	err    error
}

func (w *writeError) Write(p []byte) (int, error) {
	n, err := w.writer.Write(p)
	if err != nil {
		w.err = err
	}
	return n, err
}
