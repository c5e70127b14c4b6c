package attach_test

import (
	"fmt"
	"testing"

	"k8s.io/klog/v2"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// TestIdleCarriesOut sends more changes than may be pending, as a standby receives over days. They
// are applied while no cycle runs, and nothing changes during a cycle.
func TestIdleCarriesOut(t *testing.T) {
	l := schedtest.NewScripted(t, schedtest.NewAPI())
	known := l.Sched.Cache.(*cache.Cache)
	change := func() {
		for i := range 3 * cache.IdleBatch {
			l.API.Put(schedtest.PlainNode(fmt.Sprintf("node-%d", i%700), fmt.Sprint(1+i%5)))
		}
	}
	change()
	if waiting := known.Pending(); waiting >= cache.IdleBatch {
		t.Errorf("%d operations wait", waiting)
	}
	if known := l.Snapshot().NumNodesInPlacement(); known != 700 {
		t.Errorf("%d nodes are known before the first cycle", known)
	}
	l.Must(l.Differs())
	// Differs has started a cycle.
	before, err := l.Snapshot().Get("node-0")
	l.Must(err)
	version := before.Node().ResourceVersion
	change()
	if after, err := l.Snapshot().Get("node-0"); err != nil || after.Node().ResourceVersion != version {
		t.Errorf("a node changes within a cycle (%v)", err)
	}
	known.EndCycle(klog.Logger{})
	if waiting := known.Pending(); waiting != 0 {
		t.Errorf("%d operations wait after the cycle", waiting)
	}
	l.Must(l.Differs())
}
