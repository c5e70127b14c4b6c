package status

import (
	"testing"

	"github.com/k8s-1m/k8s-1m/internal/cluster/supervisor"
)

func TestClusterIsDegradedUnlessAllProcessesAreReady(t *testing.T) {
	state := supervisor.State{Components: []supervisor.ComponentState{{Name: "store", Phase: supervisor.Ready}}}
	for phase, want := range map[supervisor.Phase]string{supervisor.Ready: Running, supervisor.Stopped: Degraded} {
		if got := overallState(state, []Component{{Name: "store", State: string(phase)}}); got != want {
			t.Errorf("overallState() with a component that is %s = %s, want %s", phase, got, want)
		}
	}
	state.Stopping = true
	if got := overallState(state, []Component{{State: string(supervisor.Ready)}}); got != Degraded {
		t.Errorf("overallState() while the cluster is stopping = %s, want %s", got, Degraded)
	}
}
