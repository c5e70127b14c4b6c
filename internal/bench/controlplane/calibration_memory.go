package controlplane

import (
	"context"
	"fmt"
	"io"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The memory of an API server grows by more than its objects, because its watch caches keep every version
// of an object until their history is full. The calibration does not fill the history. It therefore
// divides the growth of the heap by the number of versions.
//
// The first objects of a kind cause one-time allocations, so some objects are created before the
// measurement. A burst of requests needs temporary memory for up to a minute, so the measurement waits
// until that is free.
const (
	// Metrics of Go processes: live heap after the last collection, and goroutine stacks.
	liveHeap   = "go_gc_heap_live_bytes"
	stackBytes = "go_memory_classes_heap_stacks_bytes"
	// Metrics of watch caches, by resource: number of events, and capacity of the history.
	cacheEvents   = "apiserver_watch_cache_events_received_total"
	cacheCapacity = "watch_cache_capacity"

	// firstCapacity is the initial capacity of a history, in versions. The metric of the capacity does
	// not exist until the capacity changes.
	firstCapacity = 100

	// copies is how often an API server stores a node or pod: once in the watch cache, and once in the
	// informer of its Node authorizer.
	copies = 2

	// withGarbage is the size of the heap relative to its live objects, when the garbage collector runs.
	withGarbage = 2

	// openers is the number of connections or watches that are opened concurrently.
	openers = 32
)

// memoryState is the live memory of the API server and the scheduler after a garbage collection.
type memoryState struct {
	heap, stacks float64 // bytes
	// versions is the number of object versions in the histories of watch caches, by resource.
	versions map[string]float64
	// scheduler is the heap of the scheduler in bytes.
	scheduler float64
}

// readMemory returns the current live memory.
func (c *calibration) readMemory(ctx context.Context) (memoryState, error) {
	h := memoryState{versions: map[string]float64{}}
	server, err := c.readCollected(ctx, apiServer, map[string]string{liveHeap: "", stackBytes: "", cacheEvents: "resource", cacheCapacity: "resource"})
	if err != nil {
		return h, err
	}
	h.heap, h.stacks = server[liveHeap][""], server[stackBytes][""]
	for resource, events := range server[cacheEvents] {
		h.versions[resource] = min(events, max(server[cacheCapacity][resource], firstCapacity))
	}
	totals, err := c.readCollected(ctx, scheduler, map[string]string{liveHeap: ""})
	h.scheduler = totals[liveHeap][""]
	return h, err
}

// readCollected triggers a garbage collection in the processes of a role, and then reads their metrics.
// labels are those of [experiment.Sampler.Totals].
func (c *calibration) readCollected(ctx context.Context, role string, labels map[string]string) (map[string]map[string]float64, error) {
	if err := c.Sampler.CollectGarbage(ctx, role); err != nil {
		return nil, err
	}
	totals, err := c.Sampler.Totals(ctx, role, labels)
	if err == nil && totals[liveHeap][""] == 0 {
		err = fmt.Errorf("the metrics of %s have no %s", role, liveHeap)
	}
	return totals, err
}

// heapSince returns the growth of the API server's heap, without the Lease versions that were added by
// renewals.
func (c *calibration) heapSince(before, after memoryState) float64 {
	return after.heap - before.heap - c.leaseVersion*(after.versions["leases"]-before.versions["leases"])
}

// ofObjects returns the memory of the API server per object, in bytes. Between the two readings, count
// objects of the resource were created.
func (c *calibration) ofObjects(resource string, count int, before, made memoryState) float64 {
	older := made.versions[resource] - before.versions[resource] - float64(count)
	version := c.heapSince(before, made) / (max(older, 0) + copies*float64(count))
	return withGarbage * copies * max(version, 1)
}

// nodesMemory creates the nodes. It measures the memory of a node and a Lease in the API server, and that
// of a node in the scheduler.
func (c *calibration) nodesMemory(ctx context.Context) error {
	first := c.Nodes.N / 4
	before, err := c.memoryAfter(ctx, func() error { return c.makeNodes(ctx, 0, first) })
	if err != nil {
		return err
	}
	made, err := c.memoryAfter(ctx, func() error { return c.makeNodes(ctx, first, c.Nodes.N-first) })
	if err != nil {
		return err
	}
	// No nodes are created any more, so the heap grows only by versions of renewed Leases.
	renewed, err := c.memoryAfter(ctx, func() error { return nil })
	if err != nil {
		return err
	}
	c.leaseVersion = max((renewed.heap-made.heap)/max(renewed.versions["leases"]-made.versions["leases"], 1), 1)
	c.Costs.APIServer.LeaseBytes = withGarbage * c.leaseVersion
	c.Costs.APIServer.NodeBytes = c.ofObjects("nodes", c.Nodes.N-first, before, made)
	c.Costs.Scheduler.NodeBytes = withGarbage * max((made.scheduler-before.scheduler)/float64(c.Nodes.N-first), 1)
	return nil
}

// memoryAfter calls do, waits until temporary memory is returned, and reads the memory.
func (c *calibration) memoryAfter(ctx context.Context, do func() error) (memoryState, error) {
	if err := do(); err != nil {
		return memoryState{}, err
	}
	if err := c.awaitSettled(ctx); err != nil {
		return memoryState{}, err
	}
	return c.readMemory(ctx)
}

// podsMemory measures the memory of a pod in the API server and the scheduler. count pods have been created
// since before was read.
func (c *calibration) podsMemory(ctx context.Context, before memoryState, count int) error {
	made, err := c.memoryAfter(ctx, func() error { return nil })
	if err != nil {
		return err
	}
	c.Costs.APIServer.PodBytes = c.ofObjects("pods", count, before, made)
	c.Costs.Scheduler.PodBytes = withGarbage * max((made.scheduler-before.scheduler)/float64(count), 1)
	return nil
}

// watches measures the memory of an idle connection and of an idle watch. It runs before there are nodes,
// because renewed Leases would add versions to the history.
func (c *calibration) watches(ctx context.Context) error {
	single, err := c.connect(c.Connections.N, 1, nil)
	if err != nil {
		return err
	}
	if c.Costs.APIServer.ConnectionBytes, err = c.memoryPerOpened(ctx, "connections opened", c.Connections.N, func(ctx context.Context, i int) (io.Closer, error) {
		_, err := single.Connection(i).CoreV1().ConfigMaps(namespace).Get(ctx, "calibration", metav1.GetOptions{})
		return io.NopCloser(nil), err
	}); err != nil {
		return err
	}
	clients, err := c.connect(c.Watches.N, streamsPerConnection, nil)
	if err != nil {
		return err
	}
	// A kubelet has such a watch for each ConfigMap of its pods.
	options := metav1.ListOptions{Watch: true, FieldSelector: "metadata.name=calibration"}
	c.Costs.APIServer.WatchBytes, err = c.memoryPerOpened(ctx, "watches opened", c.Watches.N, func(ctx context.Context, i int) (io.Closer, error) {
		return openStream(ctx, clients.Connection(i), "configmaps", options)
	})
	return err
}

// memoryPerOpened opens connections or watches, and returns the memory of the API server for each, in
// bytes.
func (c *calibration) memoryPerOpened(ctx context.Context, what string, count int, open func(context.Context, int) (io.Closer, error)) (float64, error) {
	before, err := c.memoryAfter(ctx, func() error { return nil })
	if err != nil {
		return 0, err
	}
	var mu sync.Mutex
	var closers []io.Closer
	defer func() {
		for _, closer := range closers {
			closer.Close()
		}
	}()
	task := c.Display.Task(what, count)
	load := c.podLoad(count, openers, 0)
	load.Progress, load.Do = task.Set, func(ctx context.Context, number, _ int) error {
		closer, err := open(ctx, number)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		closers = append(closers, closer)
		return nil
	}
	done := load.Run(ctx)
	if err := c.finishLoad(ctx, load, done, task); err != nil {
		return 0, err
	}
	if done == 0 {
		return 0, fmt.Errorf("%s: all attempts failed", what)
	}
	after, err := c.memoryAfter(ctx, func() error { return nil })
	return max((withGarbage*c.heapSince(before, after)+after.stacks-before.stacks)/float64(done), 1), err
}
