package clusterdir

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func testDir(t *testing.T) Dir {
	t.Helper()
	t.Setenv(homeEnv, t.TempDir())
	dir, err := NewDir("test")
	if err != nil {
		t.Fatal(err)
	}
	if err := dir.Create(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestConfigIsSavedAndLoaded(t *testing.T) {
	dir := testDir(t)
	if _, err := Load(dir); !errors.Is(err, ErrUnknown) {
		t.Fatalf("loading a config that was not saved: %v", err)
	}
	saved := NewConfig("test", DefaultSettings())
	saved.Ports["kwok"] = 1234
	if err := saved.Save(dir); err != nil {
		t.Fatal(err)
	}
	loaded, err := Load(dir)
	if err != nil || loaded.Ports["kwok"] != 1234 || loaded.Settings.Nodes != saved.Settings.Nodes {
		t.Errorf("loaded %+v, %v", loaded, err)
	}
	if names := dir.Names(); len(names) != 1 || names[0] != "test" {
		t.Errorf("names %q", names)
	}
}

func TestLockIsExclusiveUntilReleased(t *testing.T) {
	dir := testDir(t)
	lock, err := dir.LockSupervisor()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dir.LockSupervisor(); !errors.Is(err, ErrBusy) {
		t.Errorf("second lock: %v", err)
	}
	if err := dir.AwaitSupervisorExit(time.Millisecond); !errors.Is(err, ErrBusy) {
		t.Errorf("waiting for a held lock: %v", err)
	}
	if err := lock.Release(); err != nil {
		t.Fatal(err)
	}
	if err := dir.AwaitSupervisorExit(time.Millisecond); err != nil {
		t.Errorf("after release: %v", err)
	}
}

func TestDataOfAnotherStoreIsRejected(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	for range 2 {
		if err := PrepareData(data, StoreEtcd); err != nil {
			t.Fatal(err)
		}
	}
	if err := PrepareData(data, StoreMemEtcd); err == nil {
		t.Error("mem_etcd accepted the data directory of etcd")
	}
}

func TestWriteFileAtomicLeavesNoTemporaryFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	for _, content := range []string{"one", "two"} {
		if err := WriteFileAtomic(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(dir)
	content, readErr := os.ReadFile(path)
	if err != nil || readErr != nil || len(entries) != 1 || string(content) != "two" {
		t.Errorf("%v %q %v %v", entries, content, err, readErr)
	}
}
