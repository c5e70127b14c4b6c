package lifecycle

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/supervisor"
)

// Down stops a cluster and removes its folder, or keeps it for the next Up.
// It returns cluster.ErrUnknown when there is none.
func Down(dir clusterdir.Dir, keepData bool) (err error) {
	// Before the lock, whose file would stay.
	if !hasFolder(dir) {
		return clusterdir.ErrUnknown
	}
	lock, err := lockOperation(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()

	if !hasFolder(dir) {
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
	// A supervisor that was abandoned early has no state yet, but holds its lock.
	if err := dir.AwaitSupervisorExit(supervisorStopTimeout); err != nil {
		return fmt.Errorf("waiting for the supervisor to end: %w", err)
	}
	if !keepData {
		return dir.Remove()
	}
	if err := os.Remove(dir.StateFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// hasFolder is true for what an up left that failed early, too.
func hasFolder(dir clusterdir.Dir) bool {
	_, err := os.Stat(dir.Root())
	return !errors.Is(err, fs.ErrNotExist)
}
