package clusterload

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/prometheus/procfs"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-1m/k8s-1m/internal/component"
	"github.com/k8s-1m/k8s-1m/internal/experiment"
	"github.com/k8s-1m/k8s-1m/internal/supervisor"
)

const (
	// An object that nobody asks an API server to write, but that is written in the store.
	calibrationKey = "/registry/configmaps/" + namespace + "/calibration"
	// Watchers beside those that are there, so that their share shows.
	storeWatchers, clientWatchers = 8, 50
	caughtUp                      = 5 * time.Second
	// The store's thread that all writes pass is called so.
	pipelineThread = "pipeline"
)

// store measures reads and writes of the store itself, and what API servers do with those
// that others have made.
func (c *calibration) store(ctx context.Context) error {
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "calibration", Namespace: namespace}, Data: map[string]string{"a": "b"}}
	if _, err := c.Client.CoreV1().ConfigMaps(namespace).Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating a ConfigMap: %w", err)
	}
	client, value, err := c.dialStore(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	reads, done, err := c.calls(ctx, "keys read", func(ctx context.Context, _, _ int) error {
		_, err := client.Get(ctx, calibrationKey)
		return err
	})
	if err != nil {
		return err
	}
	c.Costs.Store.ReadMicros = max(beyond(reads, c.idle, component.Store, done), 0.1)

	before, err := c.pipelineCPU()
	if err != nil {
		return err
	}
	plain, written, err := c.writes(ctx, client, "keys written", value)
	if err != nil {
		return err
	}
	after, err := c.pipelineCPU()
	if err != nil {
		return err
	}
	c.Costs.Store.ApplyMicros = max(1e6*(after-before-c.pipelineIdle*plain.Seconds)/float64(written), 0.1)

	watching, stop := context.WithCancel(ctx)
	group := c.watchStore(watching, client)
	watched, more, err := c.writes(ctx, client, "keys written, watched", value)
	stop()
	group.Wait()
	if err != nil {
		return err
	}
	perEvent := beyond(watched, c.idle, component.Store, more) - beyond(plain, c.idle, component.Store, written)
	c.Costs.Store.EventMicros = max(perEvent/storeWatchers, 0.1)
	// An API server was told of each write with the others.
	c.Costs.Store.UpdateMicros = max(c.Costs.Store.UpdateMicros-c.Costs.Store.EventMicros, 1)
	c.Costs.APIServer.ToldMicros = max(beyond(plain, c.idle, apiServer, written), 1)
	c.Costs.APIServer.LeaseMicros = max(c.Costs.APIServer.LeaseMicros-c.Costs.APIServer.ToldMicros, 1)
	return nil
}

// deliveries measures what it takes an API server to tell a client of a change.
func (c *calibration) deliveries(ctx context.Context) error {
	client, value, err := c.dialStore(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	watching, stop := context.WithCancel(ctx)
	defer stop()
	clients, err := c.connect(clientWatchers, streamsOfConnection, nil)
	if err != nil {
		return err
	}
	var group sync.WaitGroup
	defer group.Wait()
	defer stop()
	for i := range clientWatchers {
		body, err := openStream(watching, clients.Connection(i), "configmaps", metav1.ListOptions{Watch: true, ResourceVersion: "0"})
		if err != nil {
			return err
		}
		group.Go(func() {
			defer body.Close()
			_, _ = io.Copy(io.Discard, body) // It ends with an error in any case.
		})
	}
	m, written, err := c.writes(ctx, client, "keys written, delivered", value)
	if err != nil {
		return err
	}
	more := beyond(m, c.idle, apiServer, written) - c.Costs.APIServer.ToldMicros
	c.Costs.APIServer.DeliverMicros = max(more/clientWatchers, 0.1)
	return nil
}

func (c *calibration) writes(ctx context.Context, client *clientv3.Client, what, value string) (experiment.Measured, int, error) {
	return c.calls(ctx, what, func(ctx context.Context, number, _ int) error {
		_, err := client.Put(ctx, calibrationKey, value)
		if number == c.Calls.N-1 {
			// Who is told of them needs longer than the store.
			time.Sleep(caughtUp)
		}
		return err
	})
}

func (c *calibration) dialStore(ctx context.Context) (*clientv3.Client, string, error) {
	at := component.NewStoreClient(c.Config, c.Cluster.Dir)
	tls, err := transport.TLSInfo{TrustedCAFile: at.CAFile, CertFile: at.CertFile, KeyFile: at.KeyFile}.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("certificates of the store: %w", err)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{at.Endpoint}, TLS: tls, DialTimeout: 5 * time.Second, Logger: zap.NewNop(), Context: ctx})
	if err != nil {
		return nil, "", fmt.Errorf("connecting to the store: %w", err)
	}
	answer, err := client.Get(ctx, calibrationKey)
	if err != nil || len(answer.Kvs) == 0 {
		client.Close()
		return nil, "", fmt.Errorf("reading %s from the store: found %v, %w", calibrationKey, answer, err)
	}
	return client, string(answer.Kvs[0].Value), nil
}

// watchStore watches the key, as other API servers would.
func (c *calibration) watchStore(ctx context.Context, client *clientv3.Client) *sync.WaitGroup {
	var group sync.WaitGroup
	for range storeWatchers {
		// A stream of its own each.
		watch := client.Watch(clientv3.WithRequireLeader(ctx), calibrationKey, clientv3.WithPrevKV())
		group.Go(func() {
			for range watch {
			}
		})
	}
	return &group
}

// pipelineCPU is what the store's thread that all writes pass has taken, in seconds.
func (c *calibration) pipelineCPU() (float64, error) {
	state, err := supervisor.ReadState(c.Cluster.Dir)
	if err != nil {
		return 0, err
	}
	for _, part := range state.Components {
		if part.Name != component.Store {
			continue
		}
		threads, err := procfs.AllThreads(part.Process.PID)
		if err != nil {
			return 0, fmt.Errorf("threads of the store: %w", err)
		}
		for _, thread := range threads {
			if name, err := thread.Comm(); err != nil || name != pipelineThread {
				continue
			}
			taken, err := thread.Schedstat()
			return float64(taken.RunningNanoseconds) / 1e9, err
		}
	}
	return 0, fmt.Errorf("the store has no thread %q", pipelineThread)
}
