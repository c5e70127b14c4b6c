// Package temporary creates temporary files and directories that hold secrets. A process that is killed leaves
// them behind, and the next process that creates one with the same prefix removes them.
//
// Each is locked with flock(2) while its process uses it, and the kernel releases the lock of a killed process.
// What has the prefix and is not locked is therefore a leftover. File systems without such locks, such as some
// versions of NFS, keep leftovers.
package temporary

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"
)

// maxAttempts limits the attempts to create a file that no other process removes before it is locked.
const maxAttempts = 100

// suffix is what os.CreateTemp and os.MkdirTemp add to a prefix.
var suffix = regexp.MustCompile(`^[0-9]+$`)

// File removes leftovers and creates a file with mode 0600, whose name is the prefix and a number. It is locked
// until it is closed.
func File(dir, prefix string) (*os.File, error) {
	return create(dir, prefix, func() (*os.File, error) { return os.CreateTemp(dir, prefix+"*") })
}

// Dir removes leftovers and creates a directory with mode 0700, whose name is the prefix and a number. It is
// locked until the returned file is closed.
func Dir(dir, prefix string) (*os.File, error) {
	return create(dir, prefix, func() (*os.File, error) {
		path, err := os.MkdirTemp(dir, prefix+"*")
		if err != nil {
			return nil, err
		}
		return os.Open(path)
	})
}

// create creates and locks a file or a directory. It starts over if another process has removed it before it was
// locked.
func create(dir, prefix string, attempt func() (*os.File, error)) (*os.File, error) {
	removeLeftovers(dir, prefix)
	for range maxAttempts {
		file, err := attempt()
		if errors.Is(err, os.ErrNotExist) && exists(dir) {
			continue
		}
		if err != nil {
			return nil, err
		}
		// Without locks on this file system, other processes cannot lock the file either, and keep it.
		locked := lock(file)
		if !errors.Is(locked, unix.EWOULDBLOCK) && isAt(file, file.Name()) {
			return file, nil
		}
		if err := file.Close(); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%s: other processes removed each of %d temporary files", dir, maxAttempts)
}

// removeLeftovers removes what has the prefix and is not locked. What cannot be removed, such as files of other
// users, is kept: it does not prevent the creation of another file.
func removeLeftovers(dir, prefix string) {
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		number, found := strings.CutPrefix(entry.Name(), prefix)
		if found && suffix.MatchString(number) && (entry.IsDir() || entry.Type().IsRegular()) {
			removeLeftover(filepath.Join(dir, entry.Name()), entry.IsDir())
		}
	}
}

// removeLeftover holds the lock while it removes, so that a process that has just created the file notices.
func removeLeftover(path string, isDir bool) {
	flags := os.O_RDWR
	if isDir {
		flags = os.O_RDONLY
	}
	file, err := os.OpenFile(path, flags|unix.O_NOFOLLOW, 0)
	if err != nil {
		return
	}
	defer file.Close()
	// The file may have got its final name since it was opened.
	if lock(file) == nil && isAt(file, path) {
		_ = os.RemoveAll(path)
	}
}

func lock(file *os.File) error { return unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

func exists(path string) bool { _, err := os.Lstat(path); return err == nil }

// isAt reports whether the path is still that of the open file.
func isAt(file *os.File, path string) bool {
	opened, err := file.Stat()
	if err != nil {
		return false
	}
	current, err := os.Lstat(path)
	return err == nil && os.SameFile(opened, current)
}
