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
	Waiting    Phase = "waiting"    // waits until its dependencies are ready
	Starting   Phase = "starting"   // runs, but has not been ready yet
	Ready      Phase = "ready"      // its readiness probe succeeds
	NotReady   Phase = "not ready"  // was ready, but its readiness probe fails
	Restarting Phase = "restarting" // has exited and will be started again
	Stopped    Phase = "stopped"    // was stopped by the supervisor
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
	WasReady  bool             `json:"wasReady"` // has been ready since the supervisor started
	Restarts  int              `json:"restarts"`
	// Exits counts the exits of the process, except those that the supervisor requested.
	Exits      int       `json:"exits"`
	LastExit   string    `json:"lastExit,omitempty"`
	LastExitAt time.Time `json:"lastExitAt,omitzero"`
	// Trouble is the reason why the component is not ready; empty if it is not known.
	Trouble string `json:"trouble,omitempty"`
}

// ReadState reads the state file of a cluster. It returns [fs.ErrNotExist] if the cluster is
// stopped. If the supervisor was killed, it returns the last state that it wrote.
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

// Healthy reports whether every component is ready.
func (s State) Healthy() bool {
	for _, component := range s.Components {
		if component.Phase != Ready {
			return false
		}
	}
	return len(s.Components) > 0 && !s.Stopping
}
