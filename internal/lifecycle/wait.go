package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster"
	"github.com/k8s-1m/k8s-1m/internal/component"
	"github.com/k8s-1m/k8s-1m/internal/progress"
	"github.com/k8s-1m/k8s-1m/internal/supervisor"
)

// ErrNotReady says that a component did not get ready.
var ErrNotReady = errors.New("not ready")

const (
	statePoll = 50 * time.Millisecond
	// A component that ends this often before it was ever ready will not get
	// ready by waiting.
	hopelessExits = 3
	logTailLines  = 15
	logTailBytes  = 64 << 10
)

// ComponentError names the component that failed, with the end of its log.
type ComponentError struct {
	Component string
	Reason    string
	LogFile   string
	LogTail   []string
}

func (e *ComponentError) Error() string {
	return fmt.Sprintf("%s is not ready: %s; its log is %s", e.Component, e.Reason, e.LogFile)
}

func (e *ComponentError) Unwrap() error { return ErrNotReady }

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
				return fail(o.Dir, *hopeless, tasks, "ended "+fmt.Sprint(hopeless.Exits)+" times, last with "+hopeless.LastExit)
			}
		} else if !supervisorLives(o.Dir) {
			return fail(o.Dir, supervisor.ComponentState{Name: "supervisor"}, tasks, "it ended")
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return context.Cause(ctx)
			}
			return fail(o.Dir, slowest(state), tasks, fmt.Sprintf("waited %s (--timeout); %s", o.Timeout, trouble(slowest(state))))
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

func fail(dir cluster.Dir, c supervisor.ComponentState, tasks map[string]progress.Task, reason string) error {
	if task := tasks[c.Name]; task != nil {
		task.Fail(reason)
	}
	return &ComponentError{Component: c.Name, Reason: reason, LogFile: dir.Log(c.Name), LogTail: tail(dir.Log(c.Name))}
}

func supervisorLives(dir cluster.Dir) bool {
	lock, err := dir.LockSupervisor()
	if err == nil {
		_ = lock.Release()
		return false
	}
	return true
}

// tail reads the last lines of a file, as far as it can.
func tail(path string) []string {
	file, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil
	}
	end := make([]byte, min(info.Size(), logTailBytes))
	n, _ := file.ReadAt(end, info.Size()-int64(len(end)))
	lines := strings.Split(strings.TrimSpace(string(end[:n])), "\n")
	return lines[max(0, len(lines)-logTailLines):]
}
