package attach_test

import (
	"fmt"
	"testing"

	"k8s.io/klog/v2"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// TestPendingOperationsAreAppliedBetweenCycles sends more changes than may be pending, as a standby
// receives over days. They are applied while no cycle runs, and nothing changes during a cycle.
func TestPendingOperationsAreAppliedBetweenCycles(t *testing.T) {
	f := schedtest.NewScripted(t, schedtest.NewAPI())
	nodes := f.Sched.Cache.(*cache.Cache)
	changeNodes := func() {
		for i := range 3 * cache.IdleBatch {
			f.API.Put(schedtest.PlainNode(fmt.Sprintf("node-%d", i%700), fmt.Sprint(1+i%5)))
		}
	}
	changeNodes()
	if pending := nodes.Pending(); pending >= cache.IdleBatch {
		t.Errorf("Pending() = %d operations before the first cycle, want less than %d", pending, cache.IdleBatch)
	}
	if got := f.Snapshot().NumNodesInPlacement(); got != 700 {
		t.Errorf("the snapshot has %d nodes before the first cycle, want 700", got)
	}
	f.Must(f.CheckState())
	// CheckState has started a cycle.
	before, err := f.Snapshot().Get("node-0")
	f.Must(err)
	version := before.Node().ResourceVersion
	changeNodes()
	after, err := f.Snapshot().Get("node-0")
	f.Must(err)
	if got := after.Node().ResourceVersion; got != version {
		t.Errorf("node-0 has version %s during the cycle, want %s as at its start", got, version)
	}
	nodes.EndCycle(klog.Logger{})
	if pending := nodes.Pending(); pending != 0 {
		t.Errorf("Pending() = %d operations after the cycle, want 0", pending)
	}
	f.Must(f.CheckState())
}
