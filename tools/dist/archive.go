package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// writeArchives writes an archive of each program with its license.
func (r *release) writeArchives() error {
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	for _, program := range slices.Concat(rustPrograms, goPrograms) {
		if err := r.writeArchive(program); err != nil {
			return fmt.Errorf("writing the archive of %s: %w", program, err)
		}
	}
	return nil
}

func (r *release) writeArchive(program string) error {
	out, err := os.Create(r.name(program, ".tar.gz"))
	if err != nil {
		return err
	}
	compressed := gzip.NewWriter(out)
	w := tar.NewWriter(compressed)
	folder := strings.TrimSuffix(filepath.Base(out.Name()), ".tar.gz")
	return errors.Join(
		r.addFile(w, "LICENSE", folder+"/LICENSE", 0o644),
		r.addFile(w, filepath.Join(r.programs, program), folder+"/"+program, 0o755),
		w.Close(), compressed.Close(), out.Close())
}

// addFile adds a file to an archive. The header has no owner and no time but that of the release.
func (r *release) addFile(w *tar.Writer, from, name string, mode int64) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(content)), Mode: mode, ModTime: r.time}); err != nil {
		return err
	}
	_, err = w.Write(content)
	return err
}

// sums is the name of the file with the checksums, as sha256sum writes and checks it.
const sums = "SHA256SUMS"

// writeSums writes the checksums of all files of the release.
func (r *release) writeSums() error {
	entries, err := os.ReadDir(r.out)
	if err != nil {
		return err
	}
	var out strings.Builder
	for _, entry := range entries {
		if entry.IsDir() || entry.Name() == sums {
			continue
		}
		sum, err := checksum(filepath.Join(r.out, entry.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&out, "%x  %s\n", sum, entry.Name())
	}
	return os.WriteFile(filepath.Join(r.out, sums), []byte(out.String()), 0o644)
}

func checksum(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	hash := sha256.New()
	_, err = io.Copy(hash, file)
	return hash.Sum(nil), err
}
