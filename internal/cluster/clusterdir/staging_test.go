package clusterdir

import (
	"os"
	"testing"
)

func stage(t *testing.T, dir Dir) *Staging {
	t.Helper()
	staging, err := dir.Stage()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = staging.Close() })
	return staging
}

// TestStagingIsNoClusterUntilPublished also checks that a published directory does not replace a cluster.
func TestStagingIsNoClusterUntilPublished(t *testing.T) {
	t.Setenv(homeEnv, t.TempDir())
	dir, err := NewDir("test")
	if err != nil {
		t.Fatal(err)
	}
	complete := func() *Staging {
		t.Helper()
		staging := stage(t, dir)
		if err := NewConfig("test", DefaultSettings()).Save(staging.Dir); err != nil {
			t.Fatal(err)
		}
		return staging
	}
	first, second := complete(), complete()
	if names := dir.Names(); len(names) > 0 || dir.Exists() {
		t.Errorf("Names() before Publish() = %q, want none", names)
	}
	if err := first.Publish(); err != nil || !dir.Exists() {
		t.Errorf("Publish() = %v and the cluster exists: %v, want nil, true", err, dir.Exists())
	}
	if err := second.Publish(); err == nil {
		t.Error("second Publish() succeeded, want an error because the cluster exists")
	}
	if err := second.Remove(); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(dir.Home() + "/clusters"); err != nil || len(entries) != 1 {
		t.Errorf("clusters = %v, %v, want only the published one", entries, err)
	}
}

// TestStagingOfAKilledProcessIsRemoved closes a Staging as the kernel does when its process is killed.
func TestStagingOfAKilledProcessIsRemoved(t *testing.T) {
	t.Setenv(homeEnv, t.TempDir())
	dir, err := NewDir("test")
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewDir("test-1")
	if err != nil {
		t.Fatal(err)
	}
	killed, used, ofOther := stage(t, dir), stage(t, dir), stage(t, other)
	for _, staging := range []*Staging{killed, ofOther} {
		if err := staging.Create(); err != nil {
			t.Fatal(err)
		}
		if err := staging.Close(); err != nil {
			t.Fatal(err)
		}
	}
	next := stage(t, dir)
	for _, c := range []struct {
		staging *Staging
		want    bool
	}{{killed, false}, {used, true}, {ofOther, true}, {next, true}} {
		if _, err := os.Stat(c.staging.Root()); (err == nil) != c.want {
			t.Errorf("%s: %v, want that it exists: %v", c.staging.Root(), err, c.want)
		}
	}
}
