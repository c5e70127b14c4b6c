package status

import (
	"testing"

	"github.com/k8s-1m/k8s-1m/internal/cluster/supervisor"
)

func TestOverallStateIsDegradedIfAProcessHasExited(t *testing.T) {
	state := supervisor.State{Components: []supervisor.ComponentState{{Name: "store", Phase: supervisor.Ready}}}
	for phase, want := range map[supervisor.Phase]string{supervisor.Ready: Running, supervisor.Stopped: Degraded} {
		if got := overallState(state, []Component{{Name: "store", State: string(phase)}}); got != want {
			t.Errorf("with a component that is %s the cluster is %s, want %s", phase, got, want)
		}
	}
	state.Stopping = true
	if got := overallState(state, []Component{{State: string(supervisor.Ready)}}); got != Degraded {
		t.Errorf("while it is being stopped the cluster is %s, want %s", got, Degraded)
	}
}
