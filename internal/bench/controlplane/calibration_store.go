package controlplane

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
)

const (
	// A key that is written directly in the store and not through the API server.
	calibrationKey = "/registry/configmaps/" + namespace + "/calibration"
	// Number of watchers: enough for a measurable effect.
	clientWatchers = 50
	// Writes per second: slow enough for API servers and watchers, which are disconnected if they
	// fall behind.
	storeRate, deliveryRate = 2000, 200
	// Each effect is the difference between a load with it and the same load without it. The result
	// is the median of this number of rounds.
	rounds       = 3
	roundRest    = 5 * time.Second
	caughtUp     = time.Second
	watcherGrace = 20 * time.Second
)

// store measures reads and writes of the store, and the cost of external writes for API servers.
// It runs before there are nodes, because the load of their Leases is larger than these effects.
func (c *calibration) store(ctx context.Context) (err error) {
	if c.empty, err = c.measureIdle(ctx, "empty cluster", c.Hold.D); err != nil {
		return err
	}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "calibration", Namespace: namespace}, Data: map[string]string{"a": "b"}}
	if _, err := c.Client.CoreV1().ConfigMaps(namespace).Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating a ConfigMap: %w", err)
	}
	client, err := component.NewStoreClient(c.Config, c.Cluster.Dir).Dial(ctx, c.timeout)
	if err != nil {
		return err
	}
	defer client.Close()
	reads, done, err := c.calls(ctx, burst{what: "keys read", count: c.Calls.N, call: func(ctx context.Context, _, _ int) error {
		_, err := client.Get(ctx, calibrationKey)
		return err
	}})
	if err != nil {
		return err
	}
	c.Costs.Store.ReadMicros = max(extraCPU(reads, c.empty, component.Store, done), 0.1)

	var all effects
	for range rounds {
		if err := c.round(ctx, client, &all); err != nil {
			return err
		}
	}
	c.Costs.APIServer.ReceiveWatchEventMicros = max(median(all.external), 1)
	c.Costs.APIServer.DeliverMicros = max(median(all.deliver), 0.1)
	return nil
}

// effects are the costs of each additional write or watcher, in microseconds, one value per
// round.
type effects struct {
	external []float64 // API server: for a write by another client
	deliver  []float64 // API server: for the event to one client
}

// round measures each effect once, and the same load without it.
func (c *calibration) round(ctx context.Context, client *clientv3.Client, all *effects) error {
	idle, err := c.measureIdle(ctx, "nothing happens", roundRest)
	if err != nil {
		return err
	}
	plain, written, err := c.writes(ctx, client, "keys written", storeRate, nil)
	if err != nil {
		return err
	}
	all.external = append(all.external, extraCPU(plain, idle, apiServer, written))
	slow, written, err := c.writes(ctx, client, "keys written slowly", deliveryRate, nil)
	if err != nil {
		return err
	}
	watching, err := c.watchConfigMaps(ctx)
	if err != nil {
		return err
	}
	delivered, more, err := c.writes(ctx, client, "keys written slowly, delivered", deliveryRate, watching)
	if err != nil {
		return err
	}
	deliver := extraCPU(delivered, idle, apiServer, more) - extraCPU(slow, idle, apiServer, written)
	all.deliver = append(all.deliver, deliver/clientWatchers)
	return nil
}

// watching are watchers that count their events.
type watching struct {
	count  int
	events atomic.Int64
	stop   context.CancelFunc
	group  sync.WaitGroup
}

// await waits until all watchers together have received this number of events.
func (w *watching) await(ctx context.Context, events int) error {
	for deadline := time.Now().Add(watcherGrace); int(w.events.Load()) < events; {
		if time.Now().After(deadline) {
			return fmt.Errorf("%d watchers received %d events instead of %d; the machine is too busy, try again later", w.count, w.events.Load(), events)
		}
		if err := sleep(ctx, poll); err != nil {
			return err
		}
	}
	return nil
}

func (w *watching) end() {
	w.stop()
	w.group.Wait()
}

// writes puts the key at a rate. Watchers, if any, receive an event for each write, and are
// closed afterwards.
func (c *calibration) writes(ctx context.Context, client *clientv3.Client, what string, rate float64, w *watching) (experiment.Measured, int, error) {
	answer, err := client.Get(ctx, calibrationKey)
	if err != nil || len(answer.Kvs) == 0 {
		return experiment.Measured{}, 0, fmt.Errorf("reading %s from the store: found %v, %w", calibrationKey, answer, err)
	}
	value, before := string(answer.Kvs[0].Value), 0
	b := burst{what: what, count: c.Calls.N, rate: rate, call: func(ctx context.Context, _, _ int) error {
		_, err := client.Put(ctx, calibrationKey, value)
		return err
	}}
	b.after = func(ctx context.Context) error { return sleep(ctx, caughtUp) }
	if rate == storeRate {
		b.count *= 3
	}
	if w != nil {
		defer w.end()
		before = int(w.events.Load())
		b.after = func(ctx context.Context) error { return w.await(ctx, before+w.count*b.count) }
	}
	return c.calls(ctx, b)
}

// watchConfigMaps opens watches through the API server.
func (c *calibration) watchConfigMaps(ctx context.Context) (*watching, error) {
	clients, err := c.connect(clientWatchers, streamsOfConnection, nil)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	w := &watching{count: clientWatchers, stop: stop}
	for i := range clientWatchers {
		s := stream{clients.Connection(i), "configmaps", &w.events}
		// follow always returns an error; if it returns too early, events are missing.
		w.group.Go(func() {
			_ = s.follow(ctx, metav1.ListOptions{ResourceVersion: "0", FieldSelector: "metadata.name=calibration"})
		})
	}
	// The first event of each watch is the existing object.
	if err := w.await(ctx, clientWatchers); err != nil {
		w.end()
		return nil, err
	}
	return w, nil
}

func median(of []float64) float64 {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[len(sorted)/2]
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
