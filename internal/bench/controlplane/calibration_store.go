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
	// calibrationKey is a key that is written directly to the store, not through the API server.
	calibrationKey = "/registry/configmaps/" + namespace + "/calibration"
	// clientWatchers is large enough for a measurable cost of watchers.
	clientWatchers = 50
	// storeRate and deliveryRate are writes per second without and with watchers. API servers and watchers
	// can follow at these rates; if they fell behind, they would be disconnected.
	storeRate, deliveryRate = 2000, 200
	// rounds is the number of measurements of each cost. The result is their median.
	rounds = 3
	// idleTime is the duration of the idle measurement of each round.
	idleTime = 5 * time.Second
	// receiveTime is the time after the last write within which API servers receive its event.
	receiveTime = time.Second
	// watcherGrace is the time after the last write within which all watchers must receive its event.
	watcherGrace = 20 * time.Second
)

// store measures the cost of a read for the store. For API servers, it measures the cost of a write by
// another client, and of delivering the event to a watcher. It runs before there are nodes, because the
// renewals of their Leases would cost more than these operations.
func (c *calibration) store(ctx context.Context) (err error) {
	if c.empty, err = c.measureIdle(ctx, "empty cluster", c.Hold.D); err != nil {
		return err
	}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "calibration", Namespace: namespace}, Data: map[string]string{"a": "b"}}
	if _, err := c.Client.CoreV1().ConfigMaps(namespace).Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating a ConfigMap: %w", err)
	}
	client, err := component.NewStoreClient(c.Config, c.Cluster.Dir, c.Config.Settings.StoreOf("configmaps")).Dial(ctx, c.timeout)
	if err != nil {
		return err
	}
	defer client.Close()
	reads, done, err := c.measureCalls(ctx, burst{what: "keys read", count: c.Calls.N, call: func(ctx context.Context, _, _ int) error {
		_, err := client.Get(ctx, calibrationKey)
		return err
	}})
	if err != nil {
		return err
	}
	c.Costs.Store.ReadMicros = max(extraCPU(reads, c.empty, component.Store, done), 0.1)

	var costs eventCosts
	for range rounds {
		if err := c.round(ctx, client, &costs); err != nil {
			return err
		}
	}
	c.Costs.APIServer.ReceiveWatchEventMicros = max(median(costs.receive), 1)
	c.Costs.APIServer.DeliverMicros = max(median(costs.deliver), 0.1)
	return nil
}

// eventCosts are costs of an API server in microseconds, with one value per round.
type eventCosts struct {
	receive []float64 // per write by another client
	deliver []float64 // per event to one watcher
}

// round measures each cost once, as the difference between a load with the operation and the same load
// without it.
func (c *calibration) round(ctx context.Context, client *clientv3.Client, costs *eventCosts) error {
	idle, err := c.measureIdle(ctx, "idle", idleTime)
	if err != nil {
		return err
	}
	plain, written, err := c.writes(ctx, client, "keys written", storeRate, nil)
	if err != nil {
		return err
	}
	costs.receive = append(costs.receive, extraCPU(plain, idle, apiServer, written))
	unwatched, written, err := c.writes(ctx, client, "keys written slowly", deliveryRate, nil)
	if err != nil {
		return err
	}
	watchers, err := c.watchConfigMaps(ctx)
	if err != nil {
		return err
	}
	watched, writtenWatched, err := c.writes(ctx, client, "keys written slowly, with watchers", deliveryRate, watchers)
	if err != nil {
		return err
	}
	deliver := extraCPU(watched, idle, apiServer, writtenWatched) - extraCPU(unwatched, idle, apiServer, written)
	costs.deliver = append(costs.deliver, deliver/clientWatchers)
	return nil
}

// eventWatchers are watchers that count their events.
type eventWatchers struct {
	count  int
	events atomic.Int64
	stop   context.CancelFunc
	group  sync.WaitGroup
}

// await waits until all watchers together have received this number of events.
func (w *eventWatchers) await(ctx context.Context, events int) error {
	for deadline := time.Now().Add(watcherGrace); int(w.events.Load()) < events; {
		if time.Now().After(deadline) {
			return fmt.Errorf("%d watchers received %d events instead of %d within %s; repeat the run on an idle machine",
				w.count, w.events.Load(), events, watcherGrace)
		}
		if err := experiment.Sleep(ctx, pollInterval); err != nil {
			return err
		}
	}
	return nil
}

// close closes the watches.
func (w *eventWatchers) close() {
	w.stop()
	w.group.Wait()
}

// writes measures puts of the key at a rate. If w is not nil, it also waits until the watchers have
// received an event for each put, and then closes them.
func (c *calibration) writes(ctx context.Context, client *clientv3.Client, what string, rate float64, w *eventWatchers) (experiment.Measured, int, error) {
	answer, err := client.Get(ctx, calibrationKey)
	if err != nil || len(answer.Kvs) == 0 {
		return experiment.Measured{}, 0, fmt.Errorf("reading key %s from the store: response %v, error %w",
			calibrationKey, answer, err)
	}
	value, before := string(answer.Kvs[0].Value), 0
	b := burst{what: what, count: c.Calls.N, rate: rate, call: func(ctx context.Context, _, _ int) error {
		_, err := client.Put(ctx, calibrationKey, value)
		return err
	}}
	b.after = func(ctx context.Context) error { return experiment.Sleep(ctx, receiveTime) }
	if rate == storeRate {
		b.count *= 3
	}
	if w != nil {
		defer w.close()
		before = int(w.events.Load())
		b.after = func(ctx context.Context) error { return w.await(ctx, before+w.count*b.count) }
	}
	return c.measureCalls(ctx, b)
}

// watchConfigMaps opens watches of the ConfigMap through the API server.
func (c *calibration) watchConfigMaps(ctx context.Context) (*eventWatchers, error) {
	clients, err := c.connect(clientWatchers, streamsPerConnection, nil)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	w := &eventWatchers{count: clientWatchers, stop: stop}
	for i := range clientWatchers {
		s := stream{clients.Connection(i), "configmaps", &w.events}
		// follow always returns an error. If a watch ends too early, await misses its events.
		w.group.Go(func() {
			_ = s.follow(ctx, metav1.ListOptions{ResourceVersion: "0", FieldSelector: "metadata.name=calibration"})
		})
	}
	// The first event of each watch is the existing object.
	if err := w.await(ctx, clientWatchers); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
