package controlplane

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"

	"github.com/k8s-1m/k8s-1m/internal/bench/storeserver"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
)

const (
	// The store applies writes in the thread pipelineThread if any prefix has the WAL mode fsync. With a
	// prefix that no key has, the store uses the thread but does not sync.
	pipelineThread = "pipeline"
	unusedPrefix   = "/unused/=fsync"

	aloneClients  = 20
	floodClients  = 64
	aloneRate     = 5000 // writes per second with watchers
	aloneWatchers = 64
	aloneObjects  = 50_000
)

// storeAlone measures costs that are too small to be measured in a cluster, in a store without a cluster.
// These are the CPU time of a write under load, the part of this time that is serial, the CPU time of
// delivering an event to one watcher, and the memory of one version of an object. (A store keeps all
// versions for minutes.)
func (c *calibration) storeAlone(ctx context.Context) error {
	program, err := component.FindBinary("etcd-bench")
	if err != nil {
		return err
	}
	lab := &storeserver.Lab{Bin: filepath.Dir(program)}
	lab.ServerCores, lab.ClientCores = storeserver.SplitCores(c.Result.Machine.Cores)
	task := c.Display.Task("store alone", 0)
	var measured [3][]float64 // microseconds of each round
	for round := range rounds {
		task.Say(fmt.Sprintf("round %d of %d", round+1, rounds))
		for i, measure := range []func(context.Context, *storeserver.Lab) (float64, error){c.updateMicros, c.applyMicros, c.eventMicros} {
			micros, err := measure(ctx, lab)
			if err != nil {
				task.Interrupt()
				return fmt.Errorf("measuring the store alone: %w", err)
			}
			measured[i] = append(measured[i], micros)
		}
	}
	update, apply, event := median(measured[0]), median(measured[1]), median(measured[2])
	task.Done(fmt.Sprintf("%.3g µs per write, %.3g of it in one thread, %.3g µs per event", update, apply, event))
	store := &c.Costs.Store
	store.UpdateMicros, store.ApplyMicros, store.SendWatchEventMicros = max(update, 0.1), max(apply, 0.1), max(event, 0.1)
	sizes := map[string]struct{ wire, memory *float64 }{
		"minions":           {&store.NodeWire, &store.NodeBytes},
		"leases/kube-lease": {&store.LeaseWire, &store.LeaseBytes},
		"pods/default":      {&store.PodWire, &store.PodBytes},
		"events/default":    {&store.EventWire, &store.EventBytes},
	}
	for kind, size := range sizes {
		if *size.memory, err = storeBytes(ctx, lab, "/registry/"+kind+"/calibration-", int(*size.wire)); err != nil {
			return fmt.Errorf("measuring the store's memory: %w", err)
		}
	}
	return nil
}

// updateMicros returns the CPU time of a Lease update in a busy store, in microseconds. An idle store
// wakes up for each update, which takes ten times as much CPU and does not happen in a large cluster.
func (c *calibration) updateMicros(ctx context.Context, lab *storeserver.Lab) (micros float64, err error) {
	err = c.flood(ctx, lab, nil, func(_ *storeserver.Server, report storeserver.Report) error {
		micros = report.ServerCPUMicrosPerOp
		return nil
	})
	return micros, err
}

// applyMicros returns the CPU time of a Lease update in the pipeline's thread, in microseconds.
func (c *calibration) applyMicros(ctx context.Context, lab *storeserver.Lab) (micros float64, err error) {
	err = c.flood(ctx, lab, []string{"--wal-mode-prefix", unusedPrefix}, func(server *storeserver.Server, report storeserver.Report) error {
		used, err := server.ThreadCPU(pipelineThread)
		micros = used.Seconds() * 1e6 / float64(max(report.Ops, 1))
		return err
	})
	return micros, err
}

// flood updates Leases in a store with these flags, and calls inspect while the store still runs.
func (c *calibration) flood(ctx context.Context, lab *storeserver.Lab, flags []string, inspect func(*storeserver.Server, storeserver.Report) error) error {
	server, err := lab.Fresh(ctx, storeserver.MemEtcd, "", append([]string{"--wal-mode", "buffered"}, flags...)...)
	if err != nil {
		return err
	}
	defer server.Discard()
	report, _, err := lab.Run(ctx, server, "lease-flood", "--clients", strconv.Itoa(floodClients), "--total", strconv.Itoa(50*c.Calls.N))
	if err != nil {
		return err
	}
	return inspect(server, report)
}

// eventMicros returns the CPU time of the store for delivering the event of a write to one more watcher,
// in microseconds. Each watcher has its own connection, like the watchers of different API servers.
func (c *calibration) eventMicros(ctx context.Context, lab *storeserver.Lab) (float64, error) {
	server, err := lab.Fresh(ctx, storeserver.MemEtcd, "", "--wal-mode", "buffered")
	if err != nil {
		return 0, err
	}
	defer server.Discard()
	perWrite := func(watchers int) (float64, error) {
		report, _, err := lab.Run(ctx, server, "watch", "--watchers", strconv.Itoa(watchers), "--watch-connections", strconv.Itoa(watchers),
			"--clients", strconv.Itoa(aloneClients), "--rate", strconv.Itoa(aloneRate), "--total", strconv.Itoa(5*c.Calls.N))
		return report.ServerCPUMicrosPerOp, err
	}
	few, err := perWrite(1)
	if err != nil {
		return 0, err
	}
	many, err := perWrite(1 + aloneWatchers)
	return (many - few) / aloneWatchers, err
}

// storeBytes returns the memory of the store for an object whose value has this size, including the key.
func storeBytes(ctx context.Context, lab *storeserver.Lab, prefix string, size int) (float64, error) {
	server, err := lab.Fresh(ctx, storeserver.MemEtcd, "", "--wal-mode", "none")
	if err != nil {
		return 0, err
	}
	defer server.Discard()
	before, err := server.Resident()
	if err != nil {
		return 0, err
	}
	keys := fmt.Sprintf("%s=%dx%d", prefix, aloneObjects, size)
	if _, _, err := lab.Run(ctx, server, "fill", "--clients", strconv.Itoa(aloneClients), "--keys", keys, "--key-size", "8"); err != nil {
		return 0, err
	}
	after, err := server.Settled(ctx)
	return max(float64(after-before)/aloneObjects, 1), err
}
