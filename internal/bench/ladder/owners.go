package ladder

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
)

// collectorOff is the entry of kube-controller-manager's flag --controllers that turns its garbage collector off.
const collectorOff = "-garbage-collector-controller"

// awaitOwners waits until kube-controller-manager's garbage collector has read the owners of all objects. After a start, it
// sees Leases and CSINodes before the Nodes that own them, and reads each such Node from an API server. That takes most of
// the machine for minutes, and only once. It returns how long it took. That it does not end is no error; a note says so.
func (s *step) awaitOwners(ctx context.Context) (time.Duration, error) {
	if !s.hasControllers || s.hasNoCollector() {
		return 0, nil
	}
	begun := time.Now()
	err := s.await(ctx, "owners of Leases read by the garbage collector", s.rung.nodes, s.ownersRead)
	s.mark("owners read")
	return time.Since(begun), s.noteStalled(ctx, err)
}

func (s *step) hasNoCollector() bool {
	return slices.ContainsFunc(s.cluster.Config.Settings.ControllerManagerArgs, func(arg string) bool {
		_, controllers, _ := strings.Cut(arg, "controllers=")
		return slices.Contains(strings.Split(controllers, ","), collectorOff)
	})
}

// ownersRead returns the number of nodes whose Leases the garbage collector knows, less the owners that wait to be read.
func (s *step) ownersRead(ctx context.Context) (int, error) {
	const added, waiting = "workqueue_adds_total", "workqueue_depth"
	page, err := s.cluster.Metrics(ctx, component.ControllerManager, added, waiting)
	if err != nil {
		return 0, err
	}
	const changes, reads = "garbage_collector_graph_changes", "garbage_collector_attempt_to_delete"
	// Each node has a Node and a Lease, and each is a change. Owners that wait for their first read may be those that are
	// read again after a failure, or none.
	known := int(page.Sum(added, "name", changes)-page.Sum(waiting, "name", changes)) / 2
	return max(0, min(known, s.rung.nodes)-int(page.Sum(waiting, "name", reads))), nil
}
