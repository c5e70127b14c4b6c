package supervisor

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/util/process"
)

// Phase is the phase of a component's life cycle.
type Phase string

// Phases of a component.
const (
	Waiting    Phase = "waiting"    // not started yet; waits until its dependencies are ready
	Starting   Phase = "starting"   // the process runs, but has not been ready yet
	Ready      Phase = "ready"      // the readiness probe succeeds
	NotReady   Phase = "not ready"  // the process was ready, but the readiness probe now fails
	Restarting Phase = "restarting" // the process exited and will be started again
	Stopped    Phase = "stopped"    // the supervisor stopped the process
)

// State is the content of state.json, in which the supervisor publishes the state of the
// cluster to other k1m processes. The file remains if the supervisor is killed.
type State struct {
	Supervisor process.Identity `json:"supervisor"`
	Address    string           `json:"address"` // URL that serves /healthz and /metrics
	StartedAt  time.Time        `json:"startedAt"`
	Stopping   bool             `json:"stopping,omitempty"`
	Components []ComponentState `json:"components"`
}

// ComponentState is the state of one component.
type ComponentState struct {
	Name      string           `json:"name"`
	Binary    string           `json:"binary"`
	Address   string           `json:"address"`
	Phase     Phase            `json:"phase"`
	Process   process.Identity `json:"process"`
	StartedAt time.Time        `json:"startedAt,omitzero"`
	// WasReady reports whether the component has been ready at any time since the supervisor started.
	WasReady bool `json:"wasReady"`
	// Restarts counts the starts after an exit.
	Restarts int `json:"restarts"`
	// Exits counts the exits of the process that the supervisor did not request, and failed starts.
	Exits int `json:"exits"`
	// LastExit describes the last exit, such as "signal: killed".
	LastExit   string    `json:"lastExit,omitempty"`
	LastExitAt time.Time `json:"lastExitAt,omitzero"`
	// NotReadyReason is the reason why the component is not ready; empty if it is ready or if the
	// reason is not known.
	NotReadyReason string `json:"trouble,omitempty"`
}

// ReadState reads the state file of a cluster. The error wraps [fs.ErrNotExist] if the cluster is
// stopped. If the supervisor was killed, ReadState returns the last state that the supervisor wrote.
func ReadState(dir clusterdir.Dir) (State, error) {
	content, err := os.ReadFile(dir.StateFile())
	if err != nil {
		return State{}, fmt.Errorf("reading the cluster's state: %w", err)
	}
	var state State
	if err := json.Unmarshal(content, &state); err != nil {
		return State{}, fmt.Errorf("%s is damaged: %w", dir.StateFile(), err)
	}
	return state, nil
}

// Healthy reports whether every component is ready and the cluster is not being stopped.
func (s State) Healthy() bool {
	for _, component := range s.Components {
		if component.Phase != Ready {
			return false
		}
	}
	return len(s.Components) > 0 && !s.Stopping
}
