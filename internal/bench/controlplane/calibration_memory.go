package controlplane

import (
	"context"
	"fmt"
	"io"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The memory of an API server grows by more than its objects, because its watch caches keep every
// version of an object until their history is full. The calibration does not fill the history, so it
// divides the growth by the number of versions. The first objects of a kind cause one-time allocations, so some are created
// before the measurement. Temporary memory of a burst of requests is returned
// within a minute, so the measurement waits for that.
const (
	// Metrics of Go processes: live heap after the last collection, and goroutine stacks.
	liveHeap  = "go_gc_heap_live_bytes"
	stacksAre = "go_memory_classes_heap_stacks_bytes"
	// Metrics of watch caches, by resource: number of events, and capacity of the history.
	cacheEvents   = "apiserver_watch_cache_events_received_total"
	cacheCapacity = "watch_cache_capacity"

	// Initial capacity of a history; the metric does not exist until the capacity changes.
	firstCapacity = 100

	// A node or pod is stored twice: in the watch cache, and in an informer of the API server
	// with which it authorizes nodes.
	copies = 2

	// The garbage collector lets the heap grow to twice the live objects.
	withGarbage = 2

	// Number of connections that are opened concurrently.
	openers = 32
)

// memoryState is the live memory of the API server and the scheduler after a collection.
type memoryState struct {
	heap, stacks float64 // bytes
	// versions is the number of object versions in the histories of watch caches, by resource.
	versions map[string]float64
	// scheduler is the heap of the scheduler in bytes.
	scheduler float64
}

// readMemory returns the current memory.
func (c *calibration) readMemory(ctx context.Context) (memoryState, error) {
	h := memoryState{versions: map[string]float64{}}
	server, err := c.collected(ctx, apiServer, map[string]string{liveHeap: "", stacksAre: "", cacheEvents: "resource", cacheCapacity: "resource"})
	if err != nil {
		return h, err
	}
	h.heap, h.stacks = server[liveHeap][""], server[stacksAre][""]
	for resource, events := range server[cacheEvents] {
		h.versions[resource] = min(events, max(server[cacheCapacity][resource], firstCapacity))
	}
	own, err := c.collected(ctx, scheduler, map[string]string{liveHeap: ""})
	h.scheduler = own[liveHeap][""]
	return h, err
}

// collected reads metrics of a role after a garbage collection.
func (c *calibration) collected(ctx context.Context, role string, labels map[string]string) (map[string]map[string]float64, error) {
	if err := c.Sampler.CollectGarbage(ctx, role); err != nil {
		return nil, err
	}
	totals, err := c.Sampler.Totals(ctx, role, labels)
	if err == nil && totals[liveHeap][""] == 0 {
		err = fmt.Errorf("the metrics of %s have no %s", role, liveHeap)
	}
	return totals, err
}

// heapSince returns the growth of the heap without the Leases that were renewed in between.
func (c *calibration) heapSince(before, after memoryState) float64 {
	return after.heap - before.heap - c.leaseVersion*(after.versions["leases"]-before.versions["leases"])
}

// ofObjects returns the memory of one of count objects that were created between two readings.
func (c *calibration) ofObjects(resource string, count int, before, made memoryState) float64 {
	older := made.versions[resource] - before.versions[resource] - float64(count)
	version := c.heapSince(before, made) / (max(older, 0) + copies*float64(count))
	return withGarbage * copies * max(version, 1)
}

// nodesMemory creates the nodes, and measures the memory of nodes and Leases in the API server.
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
	// From now on Leases are only renewed.
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
	if err := c.settled(ctx); err != nil {
		return memoryState{}, err
	}
	return c.readMemory(ctx)
}

// podsMemory measures the memory of count pods in the API server.
func (c *calibration) podsMemory(ctx context.Context, before memoryState, count int) error {
	made, err := c.memoryAfter(ctx, func() error { return nil })
	if err != nil {
		return err
	}
	c.Costs.APIServer.PodBytes = c.ofObjects("pods", count, before, made)
	c.Costs.Scheduler.PodBytes = withGarbage * max((made.scheduler-before.scheduler)/float64(count), 1)
	return nil
}

// watches measures the memory of idle connections and watches. It runs without nodes, because
// renewed Leases change the history.
func (c *calibration) watches(ctx context.Context) error {
	lone, err := c.connect(c.Connections.N, 1, nil)
	if err != nil {
		return err
	}
	if c.Costs.APIServer.ConnectionBytes, err = c.opened(ctx, "connections opened", c.Connections.N, func(ctx context.Context, i int) (io.Closer, error) {
		_, err := lone.Connection(i).CoreV1().ConfigMaps(namespace).Get(ctx, "calibration", metav1.GetOptions{})
		return io.NopCloser(nil), err
	}); err != nil {
		return err
	}
	clients, err := c.connect(c.Watches.N, streamsOfConnection, nil)
	if err != nil {
		return err
	}
	// A watch of a kubelet for a ConfigMap of a pod.
	options := metav1.ListOptions{Watch: true, FieldSelector: "metadata.name=calibration"}
	c.Costs.APIServer.WatchBytes, err = c.opened(ctx, "watches opened", c.Watches.N, func(ctx context.Context, i int) (io.Closer, error) {
		return openStream(ctx, clients.Connection(i), "configmaps", options)
	})
	return err
}

// opened returns the memory of the API server for each opened connection or watch, in bytes.
func (c *calibration) opened(ctx context.Context, what string, count int, open func(context.Context, int) (io.Closer, error)) (float64, error) {
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
	if err := c.end(ctx, load, done, task); err != nil {
		return 0, err
	}
	if done == 0 {
		return 0, fmt.Errorf("%s: none succeeded", what)
	}
	after, err := c.memoryAfter(ctx, func() error { return nil })
	return max((withGarbage*c.heapSince(before, after)+after.stacks-before.stacks)/float64(done), 1), err
}
