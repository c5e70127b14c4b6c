package store

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// writeUntilSnapshot puts keys with a prefix until the server has taken another snapshot.
func writeUntilSnapshot(t *testing.T, a *api, snapshots, prefix string) {
	t.Helper()
	before := numberedSnapshots(t, snapshots)
	for i := range 20_000 {
		mustPut(t, a, fmt.Sprintf("%s%d", prefix, i), strings.Repeat("x", 5000))
		if after := numberedSnapshots(t, snapshots); len(after) > 0 && !slices.Equal(after, before) {
			return
		}
	}
	t.Fatal("the server took no snapshot")
}

// numberedSnapshots returns the names of the snapshots in a directory that a server named.
func numberedSnapshots(t *testing.T, dir string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, strings.Repeat("[0-9]", 20)+".snap"))
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// TestBackupInSnapshotDirectory saves a snapshot with etcdctl into the snapshot directory, under a name that
// sorts after those of the server's own snapshots. The server must ignore it with a warning, keep it, and
// recover all keys after a crash.
func TestBackupInSnapshotDirectory(t *testing.T) {
	snapshots := filepath.Join(t.TempDir(), "snapshots")
	s := startMemEtcd(t, "--snapshot-dir", snapshots, "--snapshot-log-bytes", "200000")
	a := s.dial()
	mustPut(t, a, "first", "x")
	backup := filepath.Join(snapshots, "backup.snap")
	if output, err := s.etcdctl("snapshot", "save", backup); err != nil {
		t.Fatal(output)
	}
	saved, err := os.ReadFile(backup)
	if err != nil {
		t.Fatal(err)
	}
	for round := range 3 {
		writeUntilSnapshot(t, a, snapshots, fmt.Sprintf("%d-", round))
	}
	before := allKeys(t, a)
	s.kill()
	s.restart()
	if difference := compare(before, nil, allKeys(t, s.dial()), nil); difference != "" {
		t.Fatal(difference)
	}
	if content, err := os.ReadFile(backup); err != nil || !bytes.Equal(content, saved) {
		t.Fatalf("the backup in the snapshot directory has changed, error %v", err)
	}
	s.kill()
	if log := s.log.String(); !strings.Contains(log, backup) {
		t.Fatalf("the server does not name the file %s in its log: %s", backup, log)
	}
}

// TestSharedSnapshotDirectory starts a second server with the snapshot directory of a running one, which must
// fail. Then both use the directory in turn, and each must keep its own keys.
func TestSharedSnapshotDirectory(t *testing.T) {
	snapshots := filepath.Join(t.TempDir(), "snapshots")
	flags := []string{"--snapshot-dir", snapshots, "--snapshot-log-bytes", "200000"}
	first := startMemEtcd(t, flags...)
	secondData := filepath.Join(t.TempDir(), "data")
	args := append([]string{"--data-dir", secondData, "--listen-client-urls", fmt.Sprintf("http://127.0.0.1:%d", freePort(t)), "--log-level", "error"}, flags...)
	output, code := runFor(t, startTimeout, args...)
	if code != 1 || !strings.Contains(output, snapshots+" is in use by another process: every store needs its own --snapshot-dir") {
		t.Fatalf("start with the snapshot directory of another server: exit code %d, output %s", code, output)
	}
	for round := range 3 {
		writeUntilSnapshot(t, first.dial(), snapshots, fmt.Sprintf("first-%d-", round))
	}
	want := allKeys(t, first.dial())
	first.kill()

	second := startMemEtcd(t, append([]string{"--data-dir", secondData}, flags...)...)
	if keys := allKeys(t, second.dial()); keys.Count != 0 {
		t.Fatalf("a new server contains %d keys of the server that used the snapshot directory before", keys.Count)
	}
	for round := range 3 {
		writeUntilSnapshot(t, second.dial(), snapshots, fmt.Sprintf("second-%d-", round))
	}
	second.kill()
	first.restart()
	if difference := compare(want, nil, allKeys(t, first.dial()), nil); difference != "" {
		t.Fatal(difference)
	}
}

// TestRestoreIntoOtherSnapshotDirectory restores a data directory and starts a server with an empty snapshot
// directory. The server must refuse to start as an empty store.
func TestRestoreIntoOtherSnapshotDirectory(t *testing.T) {
	s := startMemEtcd(t)
	mustPut(t, s.dial(), "key", "value")
	file := filepath.Join(t.TempDir(), "snapshot")
	if output, err := s.etcdctl("snapshot", "save", file); err != nil {
		t.Fatal(output)
	}
	dir := filepath.Join(t.TempDir(), "restored")
	mustMemEtcd(t, "restore", file, "--data-dir", dir)
	args := []string{"--data-dir", dir, "--snapshot-dir", t.TempDir(), "--listen-client-urls", fmt.Sprintf("http://127.0.0.1:%d", freePort(t)), "--log-level", "error"}
	output, code := runFor(t, startTimeout, args...)
	if code != 1 || !strings.Contains(output, "is --snapshot-dir the directory that was used before?") {
		t.Fatalf("start of a restored store with an empty snapshot directory: exit code %d, output %s", code, output)
	}
	restored := startMemEtcd(t, "--data-dir", dir)
	if get(t, restored.dial(), "key") != "value" {
		t.Fatal("the restored store lost its key")
	}
}

// TestRestoreWithSnapshotDirectory restores with --snapshot-dir. A server with the same flag starts with the
// content; one without it refuses to.
func TestRestoreWithSnapshotDirectory(t *testing.T) {
	source := startMemEtcd(t, "--wal-mode", "none")
	if _, err := source.dial().kv.Put(t.Context(), putRequest("key", "value")); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file, data, snapshots := filepath.Join(dir, "saved"), filepath.Join(dir, "data"), filepath.Join(dir, "snapshots")
	if output, err := source.etcdctl("snapshot", "save", file); err != nil {
		t.Fatal(output)
	}
	mustMemEtcd(t, "restore", file, "--data-dir", data, "--snapshot-dir", snapshots)
	if found := numberedSnapshots(t, snapshots); len(found) != 1 {
		t.Fatalf("the snapshot directory contains %v; want one snapshot", found)
	}
	mustMemEtcd(t, "check", "--data-dir", data, "--snapshot-dir", snapshots)
	address := fmt.Sprintf("http://127.0.0.1:%d", freePort(t))
	output, code := runFor(t, startTimeout, "--data-dir", data, "--listen-client-urls", address)
	if code != 1 || !strings.Contains(output, "is --snapshot-dir the directory that was used before?") {
		t.Fatalf("without --snapshot-dir, exit code %d: %s", code, output)
	}
	s := startMemEtcd(t, "--data-dir", data, "--snapshot-dir", snapshots)
	for range 2 {
		got := allKeys(t, s.dial())
		if len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "value" {
			t.Fatalf("the restored store contains %v; want one key", got)
		}
		if err := s.stop(); err != nil {
			t.Fatal(err)
		}
		s.restart()
	}
	// Another restore does not replace the snapshot of this store.
	output, err := memEtcd(t, "restore", file, "--data-dir", filepath.Join(dir, "other"), "--snapshot-dir", snapshots)
	if err == nil || !strings.Contains(output, "in use by another process") {
		t.Fatalf("a restore into the directory of a running store: error %v, output %q", err, output)
	}
}

// TestFailedSnapshotFreesItsSpace lets a snapshot fill the disk. The unfinished file must be removed, and
// writes must succeed again without a restart.
func TestFailedSnapshotFreesItsSpace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system requires root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=75m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	// The log grows by 40 MB and occupies 50 MB in segments. No 40 MB are left for the snapshot.
	data := filepath.Join(dir, "data")
	s := startMemEtcd(t, "--data-dir", data, "--snapshot-log-bytes", "40000000")
	a := s.dial()
	put := func(i int) error {
		_, err := a.kv.Put(t.Context(), &pb.PutRequest{Key: fmt.Appendf(nil, "key-%d", i), Value: make([]byte, 1<<20)})
		return err
	}
	for written, deadline := 0, time.Now().Add(startTimeout); written < 45; {
		if err := put(written); err == nil {
			written++
		} else if time.Now().After(deadline) {
			t.Fatalf("after %d puts of 1 MiB, writes are refused: %v", written, err)
		}
	}
	// The snapshot has started and fails. Wait until no unfinished file has existed for two seconds.
	gone, deadline := time.Now(), time.Now().Add(startTimeout)
	for time.Since(gone) < 2*time.Second {
		unfinished, err := filepath.Glob(filepath.Join(data, "snap", "*.unfinished*"))
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("the failed snapshot left %v, error %v", unfinished, err)
		}
		if len(unfinished) > 0 {
			gone = time.Now()
		}
		time.Sleep(10 * time.Millisecond)
	}
	for i := range 10 {
		if err := put(i); err != nil {
			t.Fatalf("a put after the failed snapshot: %v", err)
		}
	}
	s.kill()
	if !strings.Contains(s.log.String(), "snapshot failed") {
		t.Fatalf("no snapshot failed: %s", s.log)
	}
	<-time.After(50 * time.Millisecond) // until the kernel has closed the files, so that unmounting succeeds
}

// TestFailedSnapshotIsRetried fills the disk beside a store, so that a snapshot fails, and removes the
// file again. A snapshot must be taken soon, long before the log has grown enough for the next one.
func TestFailedSnapshotIsRetried(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system requires root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=10m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	s := startMemEtcd(t, "--data-dir", t.TempDir(), "--snapshot-dir", filepath.Join(dir, "snap"), "--snapshot-log-bytes", "5000000")
	ballast := filepath.Join(dir, "ballast")
	mustWrite(t, ballast, strings.Repeat("x", 9<<20))
	a := s.dial()
	put := func(i, size int) {
		t.Helper()
		if _, err := a.kv.Put(t.Context(), &pb.PutRequest{Key: fmt.Appendf(nil, "key-%d", i), Value: make([]byte, size)}); err != nil {
			t.Fatal(err)
		}
	}
	for i := 0; !strings.Contains(s.log.String(), "snapshot failed"); i++ {
		if i == 100 {
			t.Fatal("no snapshot failed after 10 MB")
		}
		put(i%50, 100_000)
		time.Sleep(10 * time.Millisecond)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	// These puts add less than 10 KB to the log.
	for start := time.Now(); len(numberedSnapshots(t, filepath.Join(dir, "snap"))) == 0; {
		if time.Since(start) > startTimeout {
			t.Fatalf("no snapshot was taken within %v after the disk has space again", startTimeout)
		}
		put(100, 1)
		time.Sleep(200 * time.Millisecond)
	}
	s.kill()
	<-time.After(50 * time.Millisecond) // until the kernel has closed the files, so that unmounting succeeds
}

// runFor runs mem_etcd with these arguments until it exits, at most for a time, and returns its output and
// its exit code; -1 if it had to be killed.
func runFor(t *testing.T, limit time.Duration, args ...string) (string, int) {
	t.Helper()
	cmd := exec.Command(binary(t, "mem_etcd"), args...)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(limit, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	_ = cmd.Wait()
	return output.String(), cmd.ProcessState.ExitCode()
}
