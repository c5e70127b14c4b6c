package controlplane

import (
	"context"
	"fmt"
	"io"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What an API server's memory grows by is not its objects alone. Its watch caches keep every
// version of an object until their history is full, which here it is not: so what it grows
// by is shared by the versions. The first objects of a kind bring what is made once, so some
// come before. And what a burst of requests leaves goes within a minute: it is waited for.
const (
	// Of Go processes: what the last collection left, and what goroutines run on.
	liveHeap  = "go_gc_heap_live_bytes"
	stacksAre = "go_memory_classes_heap_stacks_bytes"
	// Of watch caches, by resource: the events so far, and how many the history has room for.
	cacheEvents   = "apiserver_watch_cache_events_received_total"
	cacheCapacity = "watch_cache_capacity"

	// A history has room for so many at first, and as long as that is so there is no metric.
	firstCapacity = 100

	// A node or a pod is in the watch cache, and once more in an informer of the API server's
	// own, by which it authorizes nodes.
	copies = 2

	// A collector lets as much garbage come up as there lives.
	withGarbage = 2

	// So many are opened at a time.
	openers = 32
)

// held is what an API server holds, and a scheduler, after a collection.
type held struct {
	heap, stacks float64 // bytes
	// versions of objects in the histories of watch caches, by resource.
	versions map[string]float64
	// scheduler is the heap of the scheduler.
	scheduler float64
}

// hold reads what is held now.
func (c *calibration) hold(ctx context.Context) (held, error) {
	h := held{versions: map[string]float64{}}
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

// collected reads metrics of a role once its garbage is gone.
func (c *calibration) collected(ctx context.Context, role string, labels map[string]string) (map[string]map[string]float64, error) {
	if err := c.Sampler.Collect(ctx, role); err != nil {
		return nil, err
	}
	totals, err := c.Sampler.Totals(ctx, role, labels)
	if err == nil && totals[liveHeap][""] == 0 {
		err = fmt.Errorf("the metrics of %s do not say what lives (%s)", role, liveHeap)
	}
	return totals, err
}

// heapSince is how much more the heap holds, without the Leases that were renewed meanwhile.
func (c *calibration) heapSince(before, after held) float64 {
	return after.heap - before.heap - c.leaseVersion*(after.versions["leases"]-before.versions["leases"])
}

// ofObjects is what one of so many objects takes that were made between two readings.
func (c *calibration) ofObjects(resource string, count int, before, made held) float64 {
	older := made.versions[resource] - before.versions[resource] - float64(count)
	version := c.heapSince(before, made) / (max(older, 0) + copies*float64(count))
	return withGarbage * copies * max(version, 1)
}

// nodesHeld makes the nodes, and measures what they and their Leases take in the API server.
func (c *calibration) nodesHeld(ctx context.Context) error {
	first := c.Nodes.N / 4
	before, err := c.holdAfter(ctx, func() error { return c.makeNodes(ctx, 0, first) })
	if err != nil {
		return err
	}
	made, err := c.holdAfter(ctx, func() error { return c.makeNodes(ctx, first, c.Nodes.N-first) })
	if err != nil {
		return err
	}
	// What comes now are renewals.
	renewed, err := c.holdAfter(ctx, func() error { return nil })
	if err != nil {
		return err
	}
	c.leaseVersion = max((renewed.heap-made.heap)/max(renewed.versions["leases"]-made.versions["leases"], 1), 1)
	c.Costs.APIServer.LeaseBytes = withGarbage * c.leaseVersion
	c.Costs.APIServer.NodeBytes = c.ofObjects("nodes", c.Nodes.N-first, before, made)
	c.Costs.Scheduler.NodeBytes = withGarbage * max((made.scheduler-before.scheduler)/float64(c.Nodes.N-first), 1)
	return nil
}

// holdAfter does something, waits until what it has left is gone, and reads what is held.
func (c *calibration) holdAfter(ctx context.Context, do func() error) (held, error) {
	if err := do(); err != nil {
		return held{}, err
	}
	if err := c.settled(ctx); err != nil {
		return held{}, err
	}
	return c.hold(ctx)
}

// podsHeld measures what so many pods take in the API server, beyond what it held before.
func (c *calibration) podsHeld(ctx context.Context, before held, count int) error {
	made, err := c.holdAfter(ctx, func() error { return nil })
	if err != nil {
		return err
	}
	c.Costs.APIServer.PodBytes = c.ofObjects("pods", count, before, made)
	c.Costs.Scheduler.PodBytes = withGarbage * max((made.scheduler-before.scheduler)/float64(count), 1)
	return nil
}

// watches measures the memory of connections and watches that are idle; without nodes, whose
// Leases come and go in the history.
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
	// As a kubelet's of a ConfigMap that a pod refers to.
	options := metav1.ListOptions{Watch: true, FieldSelector: "metadata.name=calibration"}
	c.Costs.APIServer.WatchBytes, err = c.opened(ctx, "watches opened", c.Watches.N, func(ctx context.Context, i int) (io.Closer, error) {
		return openStream(ctx, clients.Connection(i), "configmaps", options)
	})
	return err
}

// opened is what the API server's memory grows by with one of what is opened, in bytes.
func (c *calibration) opened(ctx context.Context, what string, count int, open func(context.Context, int) (io.Closer, error)) (float64, error) {
	before, err := c.holdAfter(ctx, func() error { return nil })
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
	after, err := c.holdAfter(ctx, func() error { return nil })
	return max((withGarbage*c.heapSince(before, after)+after.stacks-before.stacks)/float64(done), 1), err
}
