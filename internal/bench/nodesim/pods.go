package nodesim

import (
	"context"
	"fmt"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
)

const (
	namespace = "k1m-bench"
	// warmUpShare is the part of the pods that are created and deleted before the measurement.
	warmUpShare = 20
	// podWorkers is the largest number of requests of the load in flight.
	podWorkers = 32
)

// podCost is what was measured while pods were created, ran and were deleted.
type podCost struct {
	pods                  int
	running, gone, micros float64 // seconds until all pods ran and until all were gone; CPU time for a pod
	idle                  float64 // cores that the program uses without pods
	memory                float64 // peak of the process in bytes
}

// pods measures the row pods.
func (b *bench) pods(ctx context.Context) error {
	table := b.Result.Table("Life of a pod, from its binding until it is gone", "nodes of", "nodes", "pods", "created and running, s", "deleted and gone, s",
		"CPU for a pod, µs", "idle, cores", "peak memory, MiB")
	costs := map[contender]podCost{}
	for _, c := range contenders {
		cost, err := b.measurePods(ctx, c)
		if err != nil {
			return err
		}
		costs[c] = cost
		table.Add(c.String(), b.options.PodNodes.N, cost.pods, cost.running, cost.gone, cost.micros, cost.idle, cost.memory/mebibyte)
	}
	theirs := costs[kwok]
	for _, c := range contenders {
		if c == kwok {
			continue
		}
		ours := costs[c]
		figure := func(cost podCost) []experiment.Figure {
			return []experiment.Figure{{Name: "CPU for a pod's life", Unit: "µs", Value: cost.micros}}
		}
		b.Result.Compare(c.String(), kwok.String(), figure(ours), figure(theirs))
		limit := limitPod
		limit.Name += ", " + c.mode
		b.Judge(limit, theirs.micros/max(ours.micros, 1e-3), min(ours.pods, theirs.pods), "")
	}
	b.Result.Note("CPU for a pod is the CPU time of the process while pods are created, run and are deleted, less that of idle nodes in the same " +
		"time, divided by the pods. node-sim requests the token of each pod and reads it before each report, as kubelet does; kwok does neither.")
	return nil
}

// measurePods measures pods on the nodes of a contender in a new cluster.
func (b *bench) measurePods(ctx context.Context, c contender) (cost podCost, err error) {
	settings := c.settings(b.options.PodNodes.N)
	settings.Without = []string{clusterdir.AnyScheduler}
	what := fmt.Sprintf("pods, %s", c)
	err = b.with(ctx, c, what, settings, func(running *cluster) error {
		cost, err = running.measurePods(ctx, what)
		return err
	})
	return cost, err
}

// measurePods measures the life of pods, after one of some other pods, and after the idle nodes.
func (c *cluster) measurePods(ctx context.Context, what string) (cost podCost, err error) {
	if err := c.Clients.EnsureNamespace(ctx, namespace); err != nil {
		return cost, err
	}
	if _, _, err := c.live(ctx, what+": warming up", "warm-", max(c.options.Pods.N/warmUpShare, 1)); err != nil {
		return cost, err
	}
	if err := c.AwaitQuiet(ctx); err != nil {
		return cost, err
	}
	role := c.contender.program
	idle := c.Sampler.Begin(ctx)
	task := c.Display.Task(what+": idle", 0)
	if err := experiment.Sleep(ctx, c.options.Duration.D); err != nil {
		task.Interrupt()
		return cost, err
	}
	cost.idle = idle.End(ctx).Cores(role)
	task.Done(fmt.Sprintf("%.3f cores", cost.idle))
	window := c.Sampler.Begin(ctx)
	if cost.running, cost.gone, err = c.live(ctx, what, "life-", c.options.Pods.N); err != nil {
		return cost, err
	}
	measured := window.End(ctx)
	cost.pods, cost.memory = c.options.Pods.N, float64(measured.Peak[role])
	cost.micros = max(measured.Cores(role)-cost.idle, 0) * measured.Seconds * 1e6 / float64(cost.pods)
	return cost, nil
}

// live creates pods, waits until they run, deletes them, and waits until they are gone. It returns the seconds until
// then.
func (c *cluster) live(ctx context.Context, what, prefix string, count int) (running, gone float64, err error) {
	shape := bulk.DefaultPodShape()
	shape.Namespace = namespace
	pods, err := bulk.NewPods(shape)
	if err != nil {
		return 0, 0, err
	}
	pods = pods.On(bulk.Range{Prefix: bulk.NodePrefix, Count: c.nodes})
	options := bulk.DefaultOptions(prefix)
	options.Range.Count, options.Progress = count, func(int) {}
	begun := time.Now()
	if err := c.load(ctx, what+": pods created", count, func(ctx context.Context, number, worker int) error {
		return c.Clients.CreatePod(ctx, worker, pods.MakeNumber(namespace, options.Range.Name(number), number))
	}); err != nil {
		return 0, 0, err
	}
	if err := bulk.AwaitPodsRunning(ctx, c.Clients, namespace, options, c.options.Timeout); err != nil {
		return 0, 0, fmt.Errorf("waiting for pods: %w", err)
	}
	running = time.Since(begun).Seconds()
	begun = time.Now()
	if err := c.load(ctx, what+": pods deleted", count, func(ctx context.Context, number, worker int) error {
		return c.Clients.DeletePod(ctx, worker, namespace, options.Range.Name(number))
	}); err != nil {
		return 0, 0, err
	}
	if err := bulk.AwaitPodsGone(ctx, c.Clients, namespace, options, c.options.Timeout); err != nil {
		return 0, 0, fmt.Errorf("waiting until pods are gone: %w", err)
	}
	return running, time.Since(begun).Seconds(), nil
}

// load does something with each pod, at --pods-rate.
func (c *cluster) load(ctx context.Context, what string, count int, do func(ctx context.Context, number, worker int) error) error {
	task := c.Display.Task(what, count)
	load := experiment.Load{
		Workers: podWorkers, Rate: float64(c.options.PodsRate.N), Count: count, Do: do, Kind: bulk.ErrorKind,
		Latencies: experiment.NewLatencies(), Tally: experiment.NewTally(1), Progress: task.Set,
	}
	done := load.Run(ctx)
	c.Result.Errors.Merge(load.Tally)
	if ctx.Err() != nil {
		task.Interrupt()
		return ctx.Err()
	}
	if done < count {
		task.Fail(fmt.Sprintf("%d of %d", done, count))
		return fmt.Errorf("%s: %d of %d requests failed: %s", what, count-done, count, load.Tally.Describe())
	}
	task.Done(fmt.Sprint(done))
	return nil
}
