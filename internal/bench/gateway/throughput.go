package gateway

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
)

const (
	podPrefix = "listed-"
	// listClients is the number of clients that list at the same time.
	listClients = 4
	// writers is the number of clients that update the object that is watched.
	writers = 8
)

// flow is what a client reads as fast as it can.
type flow struct {
	name, unit string
	limit      experiment.Limit
	// clients is the number of connections.
	clients int
	// read reads until ctx ends, and adds to the count.
	read func(ctx context.Context, l *lab, c *connections, count *atomic.Int64) error
}

// figure is a measured value.
type figure struct {
	value      float64
	operations int
	what       string
}

// throughput measures lists and watch events through each front. The API server has CPUs of its own, so that
// the fronts take no time from it.
func (l *lab) throughput(ctx context.Context) error {
	if err := l.createPods(ctx, l.options.ListPods.N); err != nil {
		return err
	}
	table := l.Result.Table("Throughput of lists and watch events", "front", "of", "round", "per second", "CPU of the front for each, µs")
	flows := []flow{
		{"lists, not compressed", "lists", limitLists, listClients, lists("identity")},
		{"lists, compressed", "lists", limitLists, listClients, lists("gzip")},
		{"watch events", "events", limitEvents, l.options.Watchers.N, watchEvents},
	}
	worst := map[string]figure{}
	for _, fl := range flows {
		rates, total, err := l.measureFlow(ctx, fl, table)
		if err != nil {
			return err
		}
		ratio := median(rates[kubeGateway]) / max(median(rates[direct]), 1e-9)
		if w, known := worst[fl.limit.Name]; !known || ratio < w.value {
			worst[fl.limit.Name] = figure{ratio, int(total), fl.name}
		}
		l.compare(experiment.Figure{Name: fl.name, Unit: "/s", MoreIsBetter: true}, median(rates[kubeGateway]), median(rates[haproxy]))
	}
	for _, limit := range []experiment.Limit{limitLists, limitEvents} {
		w := worst[limit.Name]
		l.Judge(limit, w.value, w.operations, w.what)
	}
	return nil
}

// measureFlow measures a flow through all fronts in turn. It returns the rates by front, and the total count.
func (l *lab) measureFlow(ctx context.Context, fl flow, table *experiment.Table) (rates map[string][]float64, total int64, err error) {
	names := l.names(direct, haproxy, kubeGateway)
	fronts, closeAll, err := l.connectAll(ctx, names, l.tls, fl.clients)
	defer closeAll()
	if err != nil {
		return nil, 0, err
	}
	rates = map[string][]float64{}
	for round := range l.options.Rounds.N {
		for _, name := range names {
			task := l.Display.Task(fmt.Sprintf("%s, %s, round %d", name, fl.name, round+1), 0)
			count, seconds, cpu, err := l.measureOnce(ctx, fl, fronts[name])
			if err != nil {
				task.Interrupt()
				return nil, 0, err
			}
			rate := float64(count) / seconds
			task.Done(fmt.Sprintf("%.1f %s/s", rate, fl.unit))
			rates[name], total = append(rates[name], rate), total+count
			table.Add(name, fl.name, round+1, rate, float64(cpu.Nanoseconds())/1000/float64(max(count, 1)))
		}
	}
	return rates, total, nil
}

// measureOnce reads a flow through a front for the duration of a measurement, after a warm-up.
func (l *lab) measureOnce(ctx context.Context, fl flow, f connected) (count int64, seconds float64, cpu time.Duration, err error) {
	reading, stop := context.WithCancel(ctx)
	var counter atomic.Int64
	failed := make(chan error, 1)
	go func() { failed <- fl.read(reading, l, f.c, &counter) }()
	end := func(err error) error {
		stop()
		if failure := <-failed; err == nil {
			err = failure
		}
		return err
	}
	if err := experiment.Sleep(ctx, l.options.Duration.D/warmUpShare); err != nil {
		return 0, 0, 0, end(err)
	}
	before, err := f.cpu()
	if err != nil {
		return 0, 0, 0, end(err)
	}
	begun, first := time.Now(), counter.Load()
	err = experiment.Sleep(ctx, l.options.Duration.D)
	count, seconds = counter.Load()-first, time.Since(begun).Seconds()
	after, failure := f.cpu()
	if err == nil {
		err = failure
	}
	return count, seconds, after - before, end(err)
}

// lists returns a function that lists all pods in each of the connections in a loop.
func lists(encoding string) func(context.Context, *lab, *connections, *atomic.Int64) error {
	return func(ctx context.Context, l *lab, c *connections, count *atomic.Int64) error {
		load := experiment.Load{
			Workers: listClients, Kind: kindOf, Latencies: experiment.NewLatencies(), Tally: l.Result.Errors,
			Do: func(ctx context.Context, _, worker int) error {
				_, err := c.get(ctx, worker, "/api/v1/namespaces/"+namespace+"/pods?resourceVersion=0", protobuf, "Accept-Encoding", encoding)
				if err == nil {
					count.Add(1)
				}
				return err
			},
		}
		load.Run(ctx)
		return nil
	}
}

// watchEvents updates an object as fast as possible, and counts the events of the watches on all connections.
func watchEvents(ctx context.Context, l *lab, c *connections, count *atomic.Int64) error {
	var group sync.WaitGroup
	defer group.Wait()
	watching, stop := context.WithCancel(ctx)
	defer stop()
	var opened atomic.Int64
	path := "/api/v1/namespaces/" + namespace + "/configmaps?watch=1&resourceVersion=0&fieldSelector=metadata.name%3D" + smallObject
	ended := make(chan error, len(c.conns))
	for i := range c.conns {
		group.Go(func() { ended <- c.watch(watching, i, path, func() { opened.Add(1) }, count) })
	}
	for opened.Load() < int64(len(c.conns)) && ctx.Err() == nil {
		if err := experiment.Sleep(ctx, pollInterval); err != nil {
			return nil
		}
	}
	load := experiment.Load{
		Workers: writers, Kind: bulk.ErrorKind, Latencies: experiment.NewLatencies(), Tally: l.Result.Errors,
		Do: func(ctx context.Context, _, worker int) error {
			// The value always differs, because the API server does not store a patch that changes nothing.
			patch := fmt.Appendf(nil, `{"data":{"time":"%d"}}`, time.Now().UnixNano())
			_, err := l.Clients.Connection(worker).CoreV1().ConfigMaps(namespace).Patch(ctx, smallObject, types.MergePatchType, patch, metav1.PatchOptions{})
			return err
		},
	}
	load.Run(ctx)
	select {
	case err := <-ended:
		if ctx.Err() == nil {
			return fmt.Errorf("a watch ended early: %w", err)
		}
	default:
	}
	return nil
}

// createPods creates pods that no scheduler takes.
func (l *lab) createPods(ctx context.Context, count int) error {
	shape := bulk.DefaultPodShape()
	shape.Namespace = namespace
	pods, err := bulk.NewPods(shape)
	if err != nil {
		return err
	}
	task := l.Display.Task("pods created", count)
	summary, err := bulk.Run(ctx, bulk.Job{
		Range: bulk.Range{Prefix: podPrefix, Count: count}, Concurrency: createConcurrency, Progress: task.Set,
		Do: func(ctx context.Context, name string, _, connection int) error {
			pod := pods.Make(namespace, name)
			pod.Spec.SchedulerName = "none"
			return l.Clients.CreatePod(ctx, connection, pod)
		},
	})
	if err != nil {
		task.Interrupt()
		return fmt.Errorf("creating pods: %w", err)
	}
	task.Done(fmt.Sprintf("%d, %.0f/s", summary.Done, summary.PerSecond))
	return l.AwaitQuiet(ctx)
}
