// Package lifecycle brings clusters up and down.
package lifecycle

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/supervisor"
)

const (
	// The supervisor stops three levels of components, each within its grace.
	supervisorStopTimeout = 70 * time.Second
	killTimeout           = 5 * time.Second
	// A k1m that was just killed holds its locks for a moment yet.
	lockPatience = 500 * time.Millisecond
)

// lockOperation turns a held lock into advice.
func lockOperation(dir clusterdir.Dir) (*clusterdir.Lock, error) {
	deadline := time.Now().Add(lockPatience)
	lock, err := dir.LockOperation()
	for errors.Is(err, clusterdir.ErrBusy) && time.Now().Before(deadline) {
		time.Sleep(lockPatience / 10)
		lock, err = dir.LockOperation()
	}
	if errors.Is(err, clusterdir.ErrBusy) {
		return nil, fmt.Errorf("cluster %q: another k1m works on it (%w); wait for it or stop it with Ctrl-C", dir.Name(), err)
	}
	return lock, err
}

// stop ends the supervisor, and with it everything that it started.
func stop(dir clusterdir.Dir, state supervisor.State) error {
	err := state.Supervisor.Signal(syscall.SIGTERM)
	if err != nil {
		return sweep(dir, state)
	}
	if err := dir.AwaitSupervisorExit(supervisorStopTimeout); err != nil {
		// Its children die with it.
		if err := state.Supervisor.KillGroup(); err != nil {
			return fmt.Errorf("killing the supervisor: %w", err)
		}
		if err := state.Supervisor.AwaitExit(killTimeout); err != nil {
			return err
		}
	}
	return sweep(dir, state)
}

// sweep ends what a supervisor has left behind, known by pid and start time.
func sweep(dir clusterdir.Dir, state supervisor.State) error {
	var errs []error
	for _, component := range state.Components {
		if component.Process.Alive() {
			errs = append(errs, component.Process.KillGroup(), component.Process.AwaitExit(killTimeout))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("ending what is left of cluster %q: %w", dir.Name(), err)
	}
	return nil
}
