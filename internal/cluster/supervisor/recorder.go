package supervisor

import (
	"encoding/json"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/util/process"
)

// recorder holds the state and writes it out on every change.
type recorder struct {
	path string
	log  *slog.Logger

	mu    sync.Mutex
	state State
}

func newRecorder(path string, log *slog.Logger, state State, components []component.Component) *recorder {
	for _, c := range components {
		state.Components = append(state.Components, ComponentState{
			Name: c.Name, Binary: c.Binary, Address: c.Address, Phase: Waiting,
		})
	}
	return &recorder{path: path, log: log, state: state}
}

func (r *recorder) snapshot() State {
	r.mu.Lock()
	defer r.mu.Unlock()
	copied := r.state
	copied.Components = slices.Clone(r.state.Components)
	return copied
}

// change applies a change to the whole state and writes it.
func (r *recorder) change(apply func(*State)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	apply(&r.state)
	content, err := json.MarshalIndent(r.state, "", "  ")
	if err == nil {
		err = clusterdir.WriteFileAtomic(r.path, append(content, '\n'), 0o600)
	}
	if err != nil {
		r.log.Error("cannot write state", "error", err)
	}
}

func (r *recorder) changeComponent(name string, apply func(*ComponentState)) {
	r.change(func(state *State) {
		for i := range state.Components {
			if state.Components[i].Name == name {
				apply(&state.Components[i])
			}
		}
	})
}

func (r *recorder) started(name string, id process.Identity) {
	r.changeComponent(name, func(c *ComponentState) {
		c.Restarts = c.Exits
		c.Phase, c.Process, c.StartedAt, c.Trouble = Starting, id, time.Now(), ""
	})
}

func (r *recorder) ready(name string) {
	r.changeComponent(name, func(c *ComponentState) {
		c.Phase, c.WasReady, c.Trouble = Ready, true, ""
	})
}

func (r *recorder) notReady(name, why string) {
	r.changeComponent(name, func(c *ComponentState) {
		c.Trouble = why
		if c.Phase == Ready {
			c.Phase = NotReady
		}
	})
}

// ended records the end of a process, or that it could not start.
func (r *recorder) ended(name, how string, asked bool) {
	r.changeComponent(name, func(c *ComponentState) {
		c.Process = process.Identity{}
		c.LastExit, c.LastExitAt = how, time.Now()
		if asked {
			c.Phase = Stopped
			return
		}
		c.Phase = Restarting
		c.Exits++
	})
}
