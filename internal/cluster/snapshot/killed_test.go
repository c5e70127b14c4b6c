package snapshot

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestTemporaryFilesOfAKilledSave closes temporary files as the kernel does when their process is killed.
func TestTemporaryFilesOfAKilledSave(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "large.k1m")
	spool, err := unnamed(path)
	if err != nil {
		t.Fatal(err)
	}
	defer spool.Close()
	if _, err := spool.WriteString("store"); err != nil {
		t.Errorf("writing to the file without a name: %v", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("unnamed() left %v, %v, want no name", entries, err)
	}
	killed, err := temporaryFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := killed.Close(); err != nil {
		t.Fatal(err)
	}
	// A file of the user, whose name is similar.
	similar := filepath.Join(dir, ".large.k1m-20260101")
	if err := os.WriteFile(similar, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	next, err := temporaryFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	var names []string
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	want := []string{filepath.Base(similar), filepath.Base(next.Name())}
	slices.Sort(want)
	if err != nil || !slices.Equal(names, want) {
		t.Errorf("the directory contains %q, %v, want %q", names, err, want)
	}
	if info, err := next.Stat(); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the temporary file = %v, %v, want 0600", info.Mode(), err)
	}
}
