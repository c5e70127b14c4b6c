package temporary

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

const prefix = ".secret-"

// names returns the names in a directory, sorted.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// closed closes a file as the kernel does when its process is killed.
func closed(t *testing.T, file *os.File, err error) *os.File {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestOnlyLeftoversAreRemoved checks that what is in use, has another name or is no file is kept.
func TestOnlyLeftoversAreRemoved(t *testing.T) {
	for name, create := range map[string]func(dir, prefix string) (*os.File, error){"File": File, "Dir": Dir} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			var want []string
			for _, kept := range []string{prefix + "copy-17", prefix, prefix + "1x", ".other-17", "secret-17"} {
				want = append(want, kept)
				if err := os.WriteFile(filepath.Join(dir, kept), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Symlink(".other-17", filepath.Join(dir, prefix+"17")); err != nil {
				t.Fatal(err)
			}
			used, err := create(dir, prefix)
			if err != nil {
				t.Fatal(err)
			}
			defer used.Close()
			left, err := create(dir, prefix)
			path := closed(t, left, err).Name()
			if name == "Dir" {
				if err := os.WriteFile(filepath.Join(path, "key"), nil, 0o400); err != nil {
					t.Fatal(err)
				}
			}
			next, err := create(dir, prefix)
			if err != nil {
				t.Fatal(err)
			}
			defer next.Close()
			want = append(want, prefix+"17", filepath.Base(used.Name()), filepath.Base(next.Name()))
			slices.Sort(want)
			if got := names(t, dir); !slices.Equal(got, want) {
				t.Errorf("after %s() the directory contains %q, want %q without %s", name, got, want, filepath.Base(path))
			}
		})
	}
}

// TestRenamedFileIsKept checks that a file that has its final name is not removed with its temporary name.
func TestRenamedFileIsKept(t *testing.T) {
	dir := t.TempDir()
	file, err := File(dir, prefix)
	if err != nil {
		t.Fatal(err)
	}
	final := filepath.Join(dir, "final")
	if err := os.Rename(file.Name(), final); err != nil {
		t.Fatal(err)
	}
	closed(t, file, nil)
	next, err := File(dir, prefix)
	closed(t, next, err)
	if want := []string{filepath.Base(next.Name()), "final"}; !slices.Equal(names(t, dir), want) {
		t.Errorf("the directory contains %q, want %q", names(t, dir), want)
	}
}

// TestConcurrentCreations checks that no process loses a file that it has just created.
func TestConcurrentCreations(t *testing.T) {
	dir := t.TempDir()
	var group sync.WaitGroup
	for i := range 8 {
		create := File
		if i%2 == 0 {
			create = Dir
		}
		group.Go(func() {
			for range 50 {
				file, err := create(dir, prefix)
				if err != nil {
					t.Error(err)
					return
				}
				if !isAt(file, file.Name()) {
					t.Errorf("%s was removed while it was in use", file.Name())
				}
				if err := errors.Join(os.Remove(file.Name()), file.Close()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if left := names(t, dir); len(left) > 0 {
		t.Errorf("left %q, want nothing", left)
	}
}

func TestMissingDirectory(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for _, create := range []func(dir, prefix string) (*os.File, error){File, Dir} {
		if _, err := create(missing, prefix); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("creation in a missing directory = %v, want %v", err, os.ErrNotExist)
		}
	}
}
