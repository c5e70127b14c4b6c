package clusterdir

import (
	"slices"
	"testing"
)

func TestPortableSettingsReferToNoOtherCluster(t *testing.T) {
	s := overlay(t, DefaultSettings(), "--apiserver-port", "16443", "--wal-mode", "none", "--trace", "--trace-file", "/t", "--cpus", "kwok=0-99999",
		"--store-arg", "snapshot-dir=/s", "--store-arg", "--wal-dir=/w", "--store-arg", "log-level=debug")
	s.DataDir = "/data"
	portable, changes := s.Portable()
	if portable.DataDir+portable.TraceFile != "" || portable.WALMode != WALBuffered || len(portable.CPUs) > 0 {
		t.Errorf("Portable() = %+v, want neither directories nor WAL mode none nor CPUs", portable)
	}
	if want := []string{"log-level=debug"}; !slices.Equal(portable.StoreArgs, want) {
		t.Errorf("Portable() has the store arguments %q, want %q", portable.StoreArgs, want)
	}
	if portable.APIServerPort != 0 {
		t.Errorf("Portable() has --apiserver-port %d, want any free port", portable.APIServerPort)
	}
	if len(changes) != 6 {
		t.Errorf("Portable() described %q, want 6 changes", changes)
	}
	if err := portable.Validate(); err != nil {
		t.Errorf("Validate() = %v, want nil", err)
	}
	if len(s.StoreArgs) != 3 {
		t.Errorf("Portable() changed the original to %+v", s)
	}
	if _, changes := DefaultSettings().Portable(); len(changes) > 0 {
		t.Errorf("Portable() of the default settings described %q, want no changes", changes)
	}
}
