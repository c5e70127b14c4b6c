// Package atomicfile replaces files as a whole.
package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
)

// Write writes a temporary file and renames it to path, so that readers see either the old or
// the new content. It does not sync the file to disk: after a power loss the file may be empty.
func Write(path string, content []byte, mode os.FileMode) error {
	return write(path, content, mode, func(*os.File) error { return nil })
}

// WriteSync is Write for files that must survive a power loss: it syncs the file before the rename, and the directory after it.
func WriteSync(path string, content []byte, mode os.FileMode) error {
	if err := write(path, content, mode, (*os.File).Sync); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func write(path string, content []byte, mode os.FileMode, sync func(*os.File) error) (err error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(tmp.Name()))
		}
	}()
	_, err = tmp.Write(content)
	err = errors.Join(err, tmp.Chmod(mode), sync(tmp), tmp.Close())
	if err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}
