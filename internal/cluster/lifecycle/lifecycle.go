// Package lifecycle starts and stops clusters. [Up] checks the settings, writes the files of
// the cluster, starts the supervisor, waits until all components are ready, and creates the
// nodes. [Down] stops the supervisor and removes the files. [UseStores] gives access to the stores of a
// cluster, also while the cluster is stopped.
//
// A file lock prevents that Up and Down run concurrently on one cluster. Up passes a second lock to the
// supervisor. While that lock is held, the cluster is running.
package lifecycle

import (
	"errors"
	"fmt"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/supervisor"
)

const (
	// supervisorStopTimeout is more than the sum of the stop periods of all levels of components (store,
	// etcd-proxy, API servers, gateways, clients), because the supervisor stops the levels one after the
	// other.
	supervisorStopTimeout = 70 * time.Second
	killTimeout           = 5 * time.Second
	// lockTimeout is the time for which Lock waits, because the kernel releases the locks of
	// a killed process only when the process has exited.
	lockTimeout = 500 * time.Millisecond
)

// Lock takes the operation lock, so that no other k1m changes the cluster. If another process holds the
// lock, the error contains the remedy.
func Lock(dir clusterdir.Dir) (*clusterdir.Lock, error) {
	deadline := time.Now().Add(lockTimeout)
	lock, err := dir.LockOperation()
	for errors.Is(err, clusterdir.ErrBusy) && time.Now().Before(deadline) {
		time.Sleep(lockTimeout / 10)
		lock, err = dir.LockOperation()
	}
	if errors.Is(err, clusterdir.ErrBusy) {
		return nil, fmt.Errorf("cluster %q: another k1m is changing it (%w); wait for it or stop it with Ctrl-C", dir.Name(), err)
	}
	return lock, err
}

// ErrNotRunning means that a cluster exists but its supervisor is not running.
var ErrNotRunning = errors.New("not running")

// RequireRunning returns an error that wraps ErrNotRunning and contains the remedy, if the cluster is not
// running.
func RequireRunning(dir clusterdir.Dir) error {
	if state, err := supervisor.ReadState(dir); err == nil && state.Supervisor.Alive() {
		return nil
	}
	return fmt.Errorf("cluster %q: %w; start it with `k1m up --name %s`", dir.Name(), ErrNotRunning, dir.Name())
}
