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

// ErrNotReady says that a component did not get ready.
var ErrNotReady = errors.New("not ready")

const (
	statePoll = 50 * time.Millisecond
	// A component that ends this often before it was ever ready will not get
	// ready by waiting.
	hopelessExits = 3
)

// awaitReady shows every component until all are ready or one fails.
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
			show(state, tasks, finished)
			if state.Healthy() {
				return nil
			}
			if hopeless := findHopeless(state); hopeless != nil {
				return fail(o.Dir, state, *hopeless, tasks, "ended "+fmt.Sprint(hopeless.Exits)+" times, last with "+hopeless.LastExit)
			}
		} else if !supervisorLives(o.Dir) {
			return fail(o.Dir, state, supervisor.ComponentState{Name: "supervisor"}, tasks, "it ended")
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return context.Cause(ctx)
			}
			return fail(o.Dir, state, slowest(state), tasks, fmt.Sprintf("waited %s (--timeout); %s", o.Timeout, trouble(slowest(state))))
		case <-time.After(statePoll):
		}
	}
}

func show(state supervisor.State, tasks map[string]progress.Task, finished map[string]bool) {
	for _, c := range state.Components {
		switch {
		case finished[c.Name]:
		case c.Phase == supervisor.Ready:
			finished[c.Name] = true
			tasks[c.Name].Done("ready on " + c.Address)
		default:
			tasks[c.Name].Say(trouble(c))
		}
	}
}

func trouble(c supervisor.ComponentState) string {
	switch {
	case c.Phase == supervisor.Restarting:
		return fmt.Sprintf("restarting after %s", c.LastExit)
	case c.Trouble != "":
		return fmt.Sprintf("%s: %s", c.Phase, c.Trouble)
	}
	return string(c.Phase)
}

func findHopeless(state supervisor.State) *supervisor.ComponentState {
	for _, c := range state.Components {
		if !c.WasReady && c.Exits >= hopelessExits {
			return &c
		}
	}
	return nil
}

// slowest is the first component that is not ready: later ones wait for it.
func slowest(state supervisor.State) supervisor.ComponentState {
	for _, c := range state.Components {
		if c.Phase != supervisor.Ready {
			return c
		}
	}
	return supervisor.ComponentState{Name: "supervisor"}
}

func supervisorLives(dir clusterdir.Dir) bool {
	lock, err := dir.LockSupervisor()
	if err == nil {
		_ = lock.Release()
		return false
	}
	return true
}
