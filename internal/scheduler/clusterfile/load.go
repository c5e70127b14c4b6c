package clusterfile

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	bufferBytes = 1 << 20
	// peekBytes is how much of a file decides about its format.
	peekBytes = 64
	// Stdin is the path that stands for standard input.
	Stdin = "-"
)

// extensions are the names of the files of a directory that are read.
var extensions = []string{".json", ".yaml", ".yml"}

// Load reads the objects of a cluster from files, directories and standard input ("-"). Of a directory it reads the
// files *.json, *.yaml and *.yml.
func Load(paths []string, stdin io.Reader) (*Objects, error) {
	objects := New()
	files, err := expand(paths)
	if err != nil {
		return nil, err
	}
	for _, path := range files {
		if err := loadFile(path, stdin, objects); err != nil {
			return nil, err
		}
	}
	return objects, nil
}

// expand replaces directories by their files.
func expand(paths []string) ([]string, error) {
	var files []string
	for _, path := range paths {
		if path == Stdin {
			files = append(files, path)
			continue
		}
		info, err := os.Stat(path)
		if err != nil {
			return nil, pathError(path, err)
		}
		if !info.IsDir() {
			files = append(files, path)
			continue
		}
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, pathError(path, err)
		}
		before := len(files)
		for _, entry := range entries {
			if !entry.IsDir() && slices.Contains(extensions, strings.ToLower(filepath.Ext(entry.Name()))) {
				files = append(files, filepath.Join(path, entry.Name()))
			}
		}
		if len(files) == before {
			return nil, fmt.Errorf("%s: the directory has no files *.json, *.yaml or *.yml", path)
		}
	}
	return files, nil
}

// pathError returns an error of a file without the name of the system call.
func pathError(path string, err error) error {
	var detail *fs.PathError
	if errors.As(err, &detail) {
		err = detail.Err
	}
	return fmt.Errorf("%s: %w", path, err)
}

// open opens a file or standard input. name is for error messages.
func open(path string, stdin io.Reader) (file io.Reader, name string, closeFile func(), err error) {
	if path == Stdin {
		return stdin, "standard input", func() {}, nil
	}
	opened, err := os.Open(path)
	if err != nil {
		return nil, path, nil, pathError(path, err)
	}
	return opened, path, func() { _ = opened.Close() }, nil
}

// loadFile reads a file in any of the formats.
func loadFile(path string, stdin io.Reader, objects *Objects) error {
	file, name, closeFile, err := open(path, stdin)
	if err != nil {
		return err
	}
	defer closeFile()
	return load(file, name, objects)
}

// load recognises the format of a file by its first bytes, and reads it.
func load(file io.Reader, name string, objects *Objects) error {
	r := bufio.NewReaderSize(file, bufferBytes)
	head, err := r.Peek(peekBytes)
	if err != nil && !errors.Is(err, io.EOF) {
		return pathError(name, err)
	}
	switch {
	case strings.HasPrefix(string(head), zstdMagic):
		return readArchive(r, objects, name)
	case strings.HasPrefix(string(head), "\x1f\x8b"):
		return fmt.Errorf("%s: it is compressed with gzip; decompress it first, for example with `gunzip`", name)
	case isBolt(head), isMemEtcd(head):
		return loadSnapshot(file, r, name, objects)
	}
	t := &textReader{
		source: name, decoder: lenient, each: func(object runtime.Object) error { return objects.Add(object, name) },
		wanted:  isRead,
		skipped: func(kind schema.GroupVersionKind) { objects.Ignored[shorten(kind.Kind)]++ },
	}
	return t.read(r)
}

// loadSnapshot reads a snapshot of a store. What is not a regular file is copied to one first.
func loadSnapshot(file io.Reader, buffered io.Reader, name string, objects *Objects) error {
	if regular, ok := file.(*os.File); ok {
		if info, err := regular.Stat(); err == nil && info.Mode().IsRegular() {
			return readSnapshotFile(regular, info.Size(), objects, name)
		}
	}
	copied, size, err := toTemporaryFile(buffered)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	defer copied.Close()
	return readSnapshotFile(copied, size, objects, name)
}

// Exists returns whether a path names a file.
func Exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
