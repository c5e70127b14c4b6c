package atomicfile

import (
	"os"
	"path/filepath"
	"testing"
)

func TestWriteLeavesNoTemporaryFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	for _, content := range []string{"one", "two"} {
		if err := Write(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(dir)
	content, readErr := os.ReadFile(path)
	if err != nil || readErr != nil || len(entries) != 1 || string(content) != "two" {
		t.Errorf("directory has %v (error %v), file has %q (error %v), want one file with %q", entries, err, content, readErr, "two")
	}
}
