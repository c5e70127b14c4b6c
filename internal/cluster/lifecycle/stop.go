package lifecycle

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/supervisor"
)

// stop stops the supervisor, which stops the components. It kills the supervisor if it does not exit within
// supervisorStopTimeout, and then components that still run.
func stop(dir clusterdir.Dir, state supervisor.State) error {
	err := state.Supervisor.Signal(syscall.SIGTERM)
	if err != nil {
		return killLeftovers(dir, state)
	}
	if err := dir.AwaitSupervisorExit(supervisorStopTimeout); err != nil {
		// The kernel kills the components when the supervisor dies.
		if err := state.Supervisor.KillGroup(); err != nil {
			return fmt.Errorf("killing the supervisor: %w", err)
		}
		if err := state.Supervisor.AwaitExit(killTimeout); err != nil {
			return err
		}
	}
	return killLeftovers(dir, state)
}

// killLeftovers kills the components that still run although their supervisor has exited.
func killLeftovers(dir clusterdir.Dir, state supervisor.State) error {
	var errs []error
	for _, component := range state.Components {
		if component.Process.Alive() {
			errs = append(errs, component.Process.KillGroup(), component.Process.AwaitExit(killTimeout))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("killing the remaining processes of cluster %q: %w", dir.Name(), err)
	}
	return nil
}
