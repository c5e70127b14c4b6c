package scheduler

import (
	"fmt"
	"testing"

	"k8s.io/klog/v2"
)

// TestIdleCarriesOut changes more than may wait, as a standby hears it for days. It
// has to keep up, and must not touch what a cycle reads.
func TestIdleCarriesOut(t *testing.T) {
	l := newScripted(t, newAPI())
	cache := l.sched.Cache.(*Cache)
	change := func() {
		for i := range 3 * idleBatch {
			l.api.put(plainNode(fmt.Sprintf("node-%d", i%700), fmt.Sprint(1+i%5)))
		}
	}
	change()
	if waiting := len(cache.pending); waiting >= idleBatch {
		t.Errorf("%d operations wait", waiting)
	}
	if known := l.snapshot().NumNodesInPlacement(); known != 700 {
		t.Errorf("%d nodes are known before the first cycle", known)
	}
	l.must(l.differs())
	// That began a cycle.
	before, err := l.snapshot().Get("node-0")
	l.must(err)
	version := before.Node().ResourceVersion
	change()
	if after, err := l.snapshot().Get("node-0"); err != nil || after.Node().ResourceVersion != version {
		t.Errorf("a node changes within a cycle (%v)", err)
	}
	cache.endCycle(klog.Logger{})
	if waiting := len(cache.pending); waiting != 0 {
		t.Errorf("%d operations wait after the cycle", waiting)
	}
	l.must(l.differs())
}
