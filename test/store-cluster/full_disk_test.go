package storecluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/k8s-1m/k8s-1m/internal/util/storemembers"
)

// diskSize is that of a member's disk in [TestFullDisk]. etcd allocates two segments of 64 MiB for its log.
const diskSize = "400m"

// TestFullDisk fills the disk of the leader, and then that of a follower. The others must go on to acknowledge writes. When
// the disk has space again, the member must catch up; etcd's has ended by itself, and is started again.
func TestFullDisk(t *testing.T) {
	s := readSettings(t)
	if s.log == storemembers.LogMemory {
		s.log = "buffered" // a member without a disk needs none
	}
	var disks []string
	for range s.members {
		disks = append(disks, newDisk(t))
	}
	cluster, _ := start(t, s, disks...)
	var acknowledged []string
	for round, isWanted := range []func(m, leader *storemembers.Member) bool{
		func(m, leader *storemembers.Member) bool { return m == leader },
		func(m, leader *storemembers.Member) bool { return m != leader },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		leader, err := cluster.Leader(ctx)
		must(t, err)
		number := slices.IndexFunc(cluster.Members, func(m *storemembers.Member) bool { return isWanted(m, leader) })
		full := cluster.Members[number]
		t.Logf("the disk of %s becomes full; %s leads", full.Name, leader.Name)
		filler := fill(t, disks[number])
		acknowledged = append(acknowledged, writeBeside(t, ctx, cluster, full, round)...)
		must(t, os.Remove(filler))
		if cluster.Program() == storemembers.Etcd {
			full.Kill() // it may be about to end
			must(t, full.Start())
		}
		must(t, cluster.AwaitHealthy(ctx))
		mustHave(t, ctx, cluster, acknowledged)
	}
}

// newDisk mounts a small file system, which is unmounted after the test. It skips the test if this process may not mount.
func newDisk(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system requires root")
	}
	dir := t.TempDir()
	must(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+diskSize))
	t.Cleanup(func() {
		// The kernel closes the files of a killed process a little later.
		for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			err := syscall.Unmount(dir, 0)
			if err == nil {
				return
			}
			if time.Now().After(deadline) {
				t.Errorf("unmounting %s: %v", dir, err)
				return
			}
		}
	})
	return dir
}

// fill writes a file that takes all space of a disk.
func fill(t *testing.T, disk string) (path string) {
	t.Helper()
	path = filepath.Join(disk, "filler")
	file, err := os.Create(path)
	must(t, err)
	defer file.Close()
	if _, err := io.Copy(file, zeros{}); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("filling %s: %v", disk, err)
	}
	return path
}

// zeros is an endless reader of zeros.
type zeros struct{}

func (zeros) Read(buffer []byte) (int, error) {
	clear(buffer)
	return len(buffer), nil
}

// writeBeside writes keys of 1 MiB at all members but one, until each of them is acknowledged. They need more space than that
// member has allocated for its log. It returns the keys.
func writeBeside(t *testing.T, ctx context.Context, cluster *storemembers.Cluster, full *storemembers.Member, round int) (keys []string) {
	t.Helper()
	const count = 80
	var endpoints []string
	for _, m := range cluster.Members {
		if m != full {
			endpoints = append(endpoints, m.ClientURL)
		}
	}
	store := dial(t, endpoints...)
	value := string(make([]byte, 1<<20))
	for i := range count {
		key := fmt.Sprintf("full-%d-%d", round, i)
		for {
			attempt, cancel := context.WithTimeout(ctx, 10*time.Second)
			_, err := store.Put(attempt, key, value)
			cancel()
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				t.Fatalf("%d of %d writes were acknowledged while the disk of %s was full: %v", i, count, full.Name, err)
			}
		}
		keys = append(keys, key)
	}
	return keys
}

// mustHave checks that each member has keys with values of 1 MiB.
func mustHave(t *testing.T, ctx context.Context, cluster *storemembers.Cluster, keys []string) {
	t.Helper()
	for _, m := range cluster.Members {
		store := dial(t, m.ClientURL)
		for _, key := range keys {
			answer, err := store.Get(ctx, key, clientv3.WithSerializable())
			must(t, err)
			if len(answer.Kvs) != 1 || len(answer.Kvs[0].Value) != 1<<20 {
				t.Fatalf("%s, which was acknowledged, is missing at %s", key, m.Name)
			}
		}
	}
}
