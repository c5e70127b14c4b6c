package controlplane

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/transport"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
)

const (
	fillPrefix = "fill-"
	// streamsPerConnection is the number of watches on a connection, as in a program with several
	// informers.
	streamsPerConnection = 10
)

// fill creates pods that exist during a measurement, and waits until they run and the cluster is idle.
func (t *storeRun) fill(ctx context.Context, s *startups, count int) error {
	pods, err := usualPods()
	if err != nil {
		return err
	}
	task := t.Display.Task("pods created", count)
	o := bulk.DefaultOptions(fillPrefix)
	o.Range.Count, o.Progress = count, task.Set
	made, err := bulk.CreatePods(ctx, t.Clients, pods, namespace, o)
	t.tally(made)
	if err != nil {
		task.Interrupt()
		return fmt.Errorf("creating pods: %w", err)
	}
	task.Done(fmt.Sprint(count))
	if err := t.awaitRunning(ctx, s, count); err != nil {
		return err
	}
	return t.AwaitQuiet(ctx)
}

// prepareFilled prepares a cluster and fills it with pods. It watches these pods only until they run.
func (t *storeRun) prepareFilled(ctx context.Context, pods int) error {
	if err := t.prepare(ctx); err != nil {
		return err
	}
	filling, stop := context.WithCancel(ctx)
	defer stop()
	return t.fill(filling, t.watchPods(filling, fillPrefix), pods)
}

// updates changes an annotation of one pod after the other, at a rate, until ctx ends. It returns the load
// with its latencies and errors.
func (t *storeRun) updates(ctx context.Context, pods int, rate float64) experiment.Load {
	const workers = 64
	load := t.podLoad(0, workers, rate)
	load.Workers = workers
	load.Do = func(ctx context.Context, number, worker int) error {
		// The value always differs, because the API server does not store a patch that changes nothing.
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"k1m/update":"%d"}}}`, time.Now().UnixNano())
		_, err := t.Clients.Connection(worker).CoreV1().Pods(namespace).Patch(
			ctx, podName(fillPrefix, number%pods), types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}
	load.Run(ctx)
	return load
}

// measureUpdates runs updates for the duration d and measures the cluster meanwhile. If parallel is not
// nil, it runs concurrently.
func (t *storeRun) measureUpdates(ctx context.Context, what string, d time.Duration, pods int, rate float64, parallel func(context.Context)) (experiment.Load, experiment.Measured, error) {
	task := t.Display.Task(what, 0)
	task.Say(fmt.Sprintf("%g updates/s for %s", rate, d))
	window := t.Sampler.Begin(ctx)
	working, stop := context.WithTimeout(ctx, d)
	defer stop()
	var others sync.WaitGroup
	if parallel != nil {
		others.Go(func() { parallel(working) })
	}
	load := t.updates(working, pods, rate)
	others.Wait()
	m := window.End(ctx)
	return load, m, t.finishLoad(ctx, load, int(load.Latencies.Count()), task)
}

// stream is a watch of a resource in the namespace. It counts events without decoding them, so that one
// process can have many watches.
type stream struct {
	client   kubernetes.Interface
	resource string
	events   *atomic.Int64
}

// openStream starts a list or watch of objects of the namespace, and returns the undecoded
// response.
func openStream(ctx context.Context, client kubernetes.Interface, resource string, options metav1.ListOptions) (io.ReadCloser, error) {
	return client.CoreV1().RESTClient().Get().Namespace(namespace).Resource(resource).
		VersionedParams(&options, scheme.ParameterCodec).Stream(ctx)
}

// follow opens the watch and reads events until the server closes it or ctx ends. It always returns an
// error.
func (w stream) follow(ctx context.Context, options metav1.ListOptions) error {
	options.Watch = true
	options.TimeoutSeconds = nil
	body, err := openStream(ctx, w.client, w.resource, options)
	if err != nil {
		return err
	}
	defer body.Close()
	return experiment.CountEvents(body, w.events)
}

// connect returns clients, through the gateways if there are any, with enough connections for this number of streams. If wrap is not nil, it wraps
// the transport of each connection.
func (t *storeRun) connect(streams, perConnection int, wrap transport.WrapperFunc) (*bulk.Clients, error) {
	config, err := t.clientConfig()
	if err != nil {
		return nil, err
	}
	config.Wrap(wrap)
	return bulk.NewClients(config, component.ClientURLs(t.Config), streams/perConnection+1)
}
