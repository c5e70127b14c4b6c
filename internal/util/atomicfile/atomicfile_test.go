package atomicfile

import (
	"os"
	"path/filepath"
	"testing"
)

func TestWriteLeavesNoTemporaryFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	for content, write := range map[string]func(string, []byte, os.FileMode) error{"one": Write, "other": WriteSync} {
		if err := write(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if read, err := os.ReadFile(path); err != nil || string(read) != content {
			t.Errorf("file has %q (error %v), want %q", read, err, content)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("directory has %v (error %v), want one file", entries, err)
	}
}
