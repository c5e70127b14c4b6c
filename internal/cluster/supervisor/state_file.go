package supervisor

import (
	"encoding/json"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/util/atomicfile"
	"github.com/k8s-1m/k8s-1m/internal/util/process"
)

// stateFile keeps the state of the cluster in memory and writes it to state.json on every change.
type stateFile struct {
	path string
	log  *slog.Logger

	mu    sync.Mutex
	state State
}

func newStateFile(path string, log *slog.Logger, state State, components []component.Component) *stateFile {
	for _, c := range components {
		state.Components = append(state.Components, ComponentState{
			Name: c.Name, Binary: c.Binary, Address: c.Address, Phase: Waiting,
		})
	}
	return &stateFile{path: path, log: log, state: state}
}

// snapshot returns a copy of the state.
func (f *stateFile) snapshot() State {
	f.mu.Lock()
	defer f.mu.Unlock()
	copied := f.state
	copied.Components = slices.Clone(f.state.Components)
	return copied
}

// change applies a change to the state and writes the file. It only logs a failed write.
func (f *stateFile) change(apply func(*State)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	apply(&f.state)
	content, err := json.MarshalIndent(f.state, "", "  ")
	if err == nil {
		err = atomicfile.Write(f.path, append(content, '\n'), 0o600)
	}
	if err != nil {
		f.log.Error("cannot write the state file", "path", f.path, "error", err)
	}
}

func (f *stateFile) changeComponent(name string, apply func(*ComponentState)) {
	f.change(func(state *State) {
		for i := range state.Components {
			if state.Components[i].Name == name {
				apply(&state.Components[i])
			}
		}
	})
}

func (f *stateFile) started(name string, id process.Identity) {
	f.changeComponent(name, func(c *ComponentState) {
		c.Restarts = c.Exits
		c.Phase, c.Process, c.StartedAt, c.NotReadyReason = Starting, id, time.Now(), ""
	})
}

func (f *stateFile) ready(name string) {
	f.changeComponent(name, func(c *ComponentState) {
		c.Phase, c.WasReady, c.NotReadyReason = Ready, true, ""
	})
}

func (f *stateFile) notReady(name, reason string) {
	f.changeComponent(name, func(c *ComponentState) {
		c.NotReadyReason = reason
		if c.Phase == Ready {
			c.Phase = NotReady
		}
	})
}

// exited records that a process exited or could not be started. exit is the description of the exit.
// requested means that the supervisor stopped the process.
func (f *stateFile) exited(name, exit string, requested bool) {
	f.changeComponent(name, func(c *ComponentState) {
		c.Process = process.Identity{}
		c.LastExit, c.LastExitAt = exit, time.Now()
		if requested {
			c.Phase = Stopped
			return
		}
		c.Phase = Restarting
		c.Exits++
	})
}
