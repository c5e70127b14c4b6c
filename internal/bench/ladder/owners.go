package ladder

import (
	"context"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/profile"
)

// awaitOwners waits until kube-controller-manager's garbage collector has read the owners of all objects. After a start, it
// sees Leases and CSINodes before the Nodes that own them, and reads each such Node from an API server. That takes most of
// the machine for minutes, and only once. It returns how long it took. That it does not end is no error; a note says so.
func (s *step) awaitOwners(ctx context.Context) (time.Duration, error) {
	if !s.hasControllers || !profile.CollectsGarbage(s.cluster.Config.Settings) {
		return 0, nil
	}
	begun := time.Now()
	err := s.await(ctx, "owners of Leases read by the garbage collector", s.rung.nodes, s.ownersRead)
	s.mark("owners read")
	return time.Since(begun), s.noteStalled(ctx, err)
}

// ownersRead returns the number of nodes whose Leases the garbage collector knows, less the owners that wait to be read.
func (s *step) ownersRead(ctx context.Context) (int, error) {
	const added, waiting = "workqueue_adds_total", "workqueue_depth"
	page, err := s.cluster.Metrics(ctx, component.ControllerManager, added, waiting)
	if err != nil {
		return 0, err
	}
	const changes, reads = "garbage_collector_graph_changes", "garbage_collector_attempt_to_delete"
	// A Node and its Lease are two changes.
	known := int(page.Sum(added, "name", changes)-page.Sum(waiting, "name", changes)) / 2
	return max(0, min(known, s.rung.nodes)-int(page.Sum(waiting, "name", reads))), nil
}
