// Package lifecycle starts and stops clusters. [Up] checks the settings, writes the files of
// the cluster, starts the supervisor, waits until all components are ready, and creates the
// nodes. [Down] stops the supervisor and removes the files.
//
// A file lock prevents concurrent Up and Down of one cluster. A second lock, which Up passes to
// the supervisor, shows whether the cluster is running.
package lifecycle

import (
	"errors"
	"fmt"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/supervisor"
)

const (
	// The supervisor stops three levels of components one after the other, each within its
	// stop grace period.
	supervisorStopTimeout = 70 * time.Second
	killTimeout           = 5 * time.Second
	// A k1m process that was just killed still holds its locks for a moment.
	lockTimeout = 500 * time.Millisecond
)

// lockOperation takes the operation lock. If it is held, the error contains the remedy.
func lockOperation(dir clusterdir.Dir) (*clusterdir.Lock, error) {
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

// RequireRunning returns ErrNotRunning, with the remedy, if the cluster is not running.
func RequireRunning(dir clusterdir.Dir) error {
	if state, err := supervisor.ReadState(dir); err == nil && state.Supervisor.Alive() {
		return nil
	}
	return fmt.Errorf("cluster %q: %w; start it with `k1m up --name %s`", dir.Name(), ErrNotRunning, dir.Name())
}
