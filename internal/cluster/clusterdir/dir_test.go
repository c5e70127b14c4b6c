package clusterdir

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
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
		t.Fatalf("Load() of a config that was not saved = %v, want %v", err, ErrUnknown)
	}
	saved := NewConfig("test", DefaultSettings())
	saved.Ports["kwok"] = 1234
	if err := saved.Save(dir); err != nil {
		t.Fatal(err)
	}
	loaded, err := Load(dir)
	if err != nil || loaded.Ports["kwok"] != 1234 || loaded.Settings.Nodes != saved.Settings.Nodes {
		t.Errorf("Load() = %+v, %v, want the saved config %+v", loaded, err, saved)
	}
	if names := dir.Names(); len(names) != 1 || names[0] != "test" {
		t.Errorf("Names() = %q, want test", names)
	}
}

func TestLockIsExclusiveUntilReleased(t *testing.T) {
	dir := testDir(t)
	lock, err := dir.LockSupervisor()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dir.LockSupervisor(); !errors.Is(err, ErrBusy) {
		t.Errorf("second LockSupervisor() = %v, want %v", err, ErrBusy)
	}
	if err := dir.AwaitSupervisorExit(time.Millisecond); !errors.Is(err, ErrBusy) {
		t.Errorf("AwaitSupervisorExit() while locked = %v, want %v", err, ErrBusy)
	}
	if err := lock.Release(); err != nil {
		t.Fatal(err)
	}
	if err := dir.AwaitSupervisorExit(time.Millisecond); err != nil {
		t.Errorf("AwaitSupervisorExit() after Release() = %v, want nil", err)
	}
}

func TestDataOfAnotherStoreIsRejected(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	for range 2 {
		if err := PrepareData(data, Settings{Store: StoreEtcd}); err != nil {
			t.Fatal(err)
		}
	}
	if err := PrepareData(data, Settings{Store: StoreMemEtcd}); err == nil {
		t.Error("PrepareData() of mem_etcd with the data directory of etcd succeeded, want an error")
	}
}

// TestDataOfOtherOwnStoresIsRejected also checks that an older k1m does not use a directory with own stores, whose
// objects it would not find.
func TestDataOfOtherOwnStoresIsRejected(t *testing.T) {
	one := Settings{Store: StoreMemEtcd}
	several := Settings{Store: StoreMemEtcd, StoreFor: []string{"pods,events=own"}}
	for _, c := range []struct {
		first, second Settings
		version       int
		want          string
	}{
		{one, several, dataVersion, "has no own stores, and the settings have own stores for events, pods"},
		{several, one, dataVersionOwnStores, "has own stores for events, pods, and the settings have no own stores"},
	} {
		data := filepath.Join(t.TempDir(), "data")
		for range 2 {
			if err := PrepareData(data, c.first); err != nil {
				t.Fatal(err)
			}
		}
		if err := PrepareData(data, c.second); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("PrepareData() with other own stores = %v, want %q", err, c.want)
		}
		for _, store := range c.first.StoreNames() {
			if _, err := os.Stat(c.first.StoreDir(data, store)); err != nil {
				t.Error(err)
			}
		}
		var format DataFormat
		content, err := os.ReadFile(filepath.Join(data, "format.json"))
		if err == nil {
			err = json.Unmarshal(content, &format)
		}
		if err != nil || format.Version != c.version {
			t.Errorf("format.json = %s (%v), want version %d", content, err, c.version)
		}
	}
}
