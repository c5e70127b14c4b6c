package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/supervisor"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
)

// ErrNotReady means that a component did not become ready.
var ErrNotReady = errors.New("not ready")

const (
	statePollInterval = 50 * time.Millisecond
	// maxExitsBeforeReady is the number of exits before it is first ready after which a component has
	// failed.
	maxExitsBeforeReady = 3
)

// awaitReady waits until all components are ready, or one has failed, and displays their progress.
func awaitReady(ctx context.Context, o UpOptions, components []component.Component) error {
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	tasks := map[string]progress.Task{}
	for _, c := range components {
		tasks[c.Name] = o.Display.Task(c.Name, 0)
	}
	finished := map[string]bool{}
	for {
		state, readErr := supervisor.ReadState(o.Dir)
		if readErr == nil {
			showProgress(state, tasks, finished)
			if state.Healthy() {
				return nil
			}
			if failed := findFailed(state); failed != nil {
				return failComponent(o.Dir, state, *failed, tasks, fmt.Sprintf("exited %d times, most recently with %s", failed.Exits, failed.LastExit))
			}
		} else if !supervisorRunning(o.Dir) {
			return failComponent(o.Dir, state, supervisor.ComponentState{Name: "supervisor"}, tasks, "it exited")
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return context.Cause(ctx)
			}
			return failComponent(o.Dir, state, firstNotReady(state), tasks, fmt.Sprintf("timed out after %s (--timeout); %s", o.Timeout, describePhase(firstNotReady(state))))
		case <-time.After(statePollInterval):
		}
	}
}

// showProgress updates the tasks of the components. It ends the task of a component when the component is
// first ready.
func showProgress(state supervisor.State, tasks map[string]progress.Task, finished map[string]bool) {
	for _, c := range state.Components {
		switch {
		case finished[c.Name]:
		case c.Phase == supervisor.Ready:
			finished[c.Name] = true
			tasks[c.Name].Done("ready on " + c.Address)
		default:
			tasks[c.Name].Say(describePhase(c))
		}
	}
}

// describePhase returns the phase of a component, with the reason if it is known.
func describePhase(c supervisor.ComponentState) string {
	switch {
	case c.Phase == supervisor.Restarting:
		return fmt.Sprintf("restarting after %s", c.LastExit)
	case c.NotReadyReason != "":
		return fmt.Sprintf("%s: %s", c.Phase, c.NotReadyReason)
	}
	return string(c.Phase)
}

// findFailed returns a component that has failed; nil if none has.
func findFailed(state supervisor.State) *supervisor.ComponentState {
	for _, c := range state.Components {
		if !c.WasReady && c.Exits >= maxExitsBeforeReady {
			return &c
		}
	}
	return nil
}

// firstNotReady returns the first component that is not ready. The components after it may depend on it.
func firstNotReady(state supervisor.State) supervisor.ComponentState {
	for _, c := range state.Components {
		if c.Phase != supervisor.Ready {
			return c
		}
	}
	return supervisor.ComponentState{Name: "supervisor"}
}

// supervisorRunning reports whether a supervisor holds its lock.
func supervisorRunning(dir clusterdir.Dir) bool {
	lock, err := dir.LockSupervisor()
	if err == nil {
		_ = lock.Release()
		return false
	}
	return true
}
