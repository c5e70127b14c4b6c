package lifecycle

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/supervisor"
)

// Down stops a cluster. It removes the cluster's directory unless keepData is set. It returns
// [clusterdir.ErrUnknown] if the cluster does not exist.
func Down(dir clusterdir.Dir, keepData bool) (err error) {
	// Check before the lock is taken, because taking the lock creates a file that is never removed.
	if !directoryExists(dir) {
		return clusterdir.ErrUnknown
	}
	lock, err := Lock(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()

	if !directoryExists(dir) {
		return clusterdir.ErrUnknown
	}
	state, err := supervisor.ReadState(dir)
	switch {
	case err == nil:
		if err := stop(dir, state); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	// A supervisor can run without a state file: its `k1m up` exited before it wrote the file.
	if err := dir.AwaitSupervisorExit(supervisorStopTimeout); err != nil {
		return fmt.Errorf("waiting for the supervisor to exit: %w", err)
	}
	if !keepData {
		return dir.Remove()
	}
	if err := os.Remove(dir.StateFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// directoryExists reports whether the cluster's directory exists. Unlike [clusterdir.Dir.Exists], it
// returns true for the directory of a failed Up.
func directoryExists(dir clusterdir.Dir) bool {
	_, err := os.Stat(dir.Root())
	return !errors.Is(err, fs.ErrNotExist)
}
