package supervisor

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/util/process"
)

// Phase is where a component is in its life.
type Phase string

const (
	Waiting    Phase = "waiting"    // for those that it depends on
	Starting   Phase = "starting"   // runs, was not ready yet
	Ready      Phase = "ready"      // answers its probe
	NotReady   Phase = "not ready"  // was ready, does not answer now
	Restarting Phase = "restarting" // has ended, will be started again
	Stopped    Phase = "stopped"    // was told to end
)

// State is what the supervisor tells everybody else, in a file, so that it can
// be read when the supervisor is dead too.
type State struct {
	Supervisor process.Identity `json:"supervisor"`
	Address    string           `json:"address"` // of /healthz and /metrics
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
	WasReady  bool             `json:"wasReady"` // since the supervisor started
	Restarts  int              `json:"restarts"`
	// Exits counts every end that nobody asked for.
	Exits      int       `json:"exits"`
	LastExit   string    `json:"lastExit,omitempty"`
	LastExitAt time.Time `json:"lastExitAt,omitzero"`
	// Trouble is why it is not ready, as far as known.
	Trouble string `json:"trouble,omitempty"`
}

// ReadState reads the state that a supervisor has left or keeps.
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

// Healthy says whether every component is ready now.
func (s State) Healthy() bool {
	for _, component := range s.Components {
		if component.Phase != Ready {
			return false
		}
	}
	return len(s.Components) > 0 && !s.Stopping
}
