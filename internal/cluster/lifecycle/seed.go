package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/seed"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

const seedDialTimeout = 10 * time.Second

var errRunning = errors.New("the cluster is running")

// validateSeed returns a usage error if nodes cannot be written directly into the store of a cluster with
// these settings.
func validateSeed(s clusterdir.Settings) error {
	switch {
	case s.Nodes == 0:
		return usage.Errorf("--seed-store: there are no nodes to write; set --nodes")
	case s.ReplicationLog == clusterdir.LogMemory:
		return usage.Errorf("--seed-store: with --replication-log memory the store loses the nodes when it is started again; choose buffered or fsync")
	case s.StoreAddress == "" && !s.KeepsData():
		return usage.Errorf("--seed-store: with --wal-mode %s the store loses the nodes when it is started again; choose buffered or fsync", s.WALMode)
	}
	return nil
}

// notSeedable returns the error of a cluster whose store is not empty. remedy tells users how to get an empty one.
func notSeedable(config clusterdir.Config, reason error, remedy string) error {
	return fmt.Errorf("cluster %q: --seed-store needs an empty store, but %w; omit the flag to create missing nodes through the API, or %s",
		config.Name, reason, remedy)
}

// removeCluster tells users how to remove a cluster.
func removeCluster(config clusterdir.Config) string {
	return fmt.Sprintf("remove the cluster with `k1m down --name %s`", config.Name)
}

// emptyStore tells users how to get an empty store. `k1m down` removes only data in the cluster's directory.
func emptyStore(config clusterdir.Config) string {
	switch s := config.Settings; {
	case s.StoreAddress != "":
		return fmt.Sprintf("delete the keys of the store with `etcdctl del --prefix %s/`", s.EtcdPrefix())
	case s.DataDir != "":
		return "name an empty directory with --data-dir"
	}
	return removeCluster(config)
}

// seedNodes writes the nodes of the settings directly into the stores of a cluster that is not running. isNew
// means that the caller removes the cluster's directory if seedNodes fails. Nodes in another store are removed
// by seedNodes itself.
func seedNodes(ctx context.Context, o UpOptions, config clusterdir.Config, isNew bool) error {
	nodes, err := newNodes(config.Settings)
	if err != nil {
		return err
	}
	simulator, err := seedSimulator(config.Settings)
	if err != nil {
		return err
	}
	task := o.Display.Task("nodes seeded", config.Settings.Nodes)
	took := time.Duration(0)
	options := seed.Options{
		Nodes: nodes, Range: bulk.Range{Prefix: bulk.NodePrefix, Count: config.Settings.Nodes},
		Simulator: simulator, Prefix: config.Settings.EtcdPrefix(), Progress: task.Set,
		KeepPart: isNew && config.Settings.StoreAddress == "" && config.Settings.DataDir == "",
	}
	use := func(ctx context.Context) error {
		// After ctx is done, the clients delete what they have written.
		stores, closeStores, err := dialSeeded(context.WithoutCancel(ctx), o.Dir, config)
		defer closeStores()
		if err != nil {
			return err
		}
		started := time.Now()
		defer func() { took = time.Since(started) }()
		return runSeed(ctx, stores, options, o.Display)
	}
	if config.Settings.StoreAddress != "" {
		err = use(ctx)
	} else {
		err = withStores(ctx, o.Dir, config, use)
	}
	if err != nil {
		err = seedError(config, err, ctx.Err() != nil)
		progress.Fail(ctx, task, err.Error())
		return err
	}
	task.Done(fmt.Sprintf("%d nodes with their Leases, %.0f nodes/s", options.Range.Count, float64(options.Range.Count)/took.Seconds()))
	return nil
}

// dialSeeded connects to all stores of a cluster. The returned function closes the connections, also after an error.
func dialSeeded(ctx context.Context, dir clusterdir.Dir, config clusterdir.Config) (stores seed.Stores, closeAll func(), err error) {
	names := config.Settings.StoreNames()
	if len(names) == 0 {
		names = []string{clusterdir.MainStore}
	}
	clients := map[string]*clientv3.Client{}
	closeAll = func() {
		for _, client := range clients {
			_ = client.Close()
		}
	}
	for _, name := range names {
		client, err := component.NewStoreClient(config, dir, name).Dial(ctx, seedDialTimeout)
		if err != nil {
			return stores, closeAll, err
		}
		clients[name] = client
		stores.All = append(stores.All, client)
	}
	of := func(resource string) clientv3.KV { return clients[config.Settings.StoreOf(resource)] }
	stores.Nodes, stores.Leases, stores.CSINodes = of(clusterdir.NodesResource), of(clusterdir.LeasesResource), of(clusterdir.CSINodesResource)
	return stores, closeAll, nil
}

// seedSimulator returns the simulator of the settings, whose writes the seeded objects have. It returns a usage error if
// a flag of node-sim is invalid.
func seedSimulator(s clusterdir.Settings) (seed.Simulator, error) {
	if s.NodeSimulator != clusterdir.SimulatorNodeSim {
		return seed.Kwok(), nil
	}
	seconds, ip := int64(component.NodeLeaseSeconds), clusterdir.Loopback
	for _, arg := range s.NodeSimArgs {
		var err error
		switch key, value, _ := strings.Cut(strings.TrimLeft(arg, "-"), "="); key {
		case "node-lease-duration-seconds":
			if seconds, err = strconv.ParseInt(value, 10, 32); err != nil {
				return seed.Simulator{}, usage.Errorf("--node-sim-arg %s: not a number of seconds", arg)
			}
		case "node-ip":
			ip = value
		}
	}
	return seed.NodeSim(int32(seconds), ip), nil
}

// runSeed writes nodes into stores. It displays the deletion of nodes that takes place if it fails.
func runSeed(ctx context.Context, stores seed.Stores, options seed.Options, display progress.Display) error {
	var deletion progress.Task
	options.Removing = func() { deletion = display.Task("seeded nodes deleted", 0) }
	err := seed.Run(ctx, stores, options)
	switch {
	case deletion == nil:
	case errors.Is(err, seed.ErrIncomplete):
		deletion.Fail("the store keeps a part of them")
	default:
		deletion.Done("complete")
	}
	return err
}

// seedError adds the remedy to an error of [seed.Run].
func seedError(config clusterdir.Config, err error, interrupted bool) error {
	incomplete := errors.Is(err, seed.ErrIncomplete)
	switch {
	case errors.Is(err, seed.ErrNotEmpty):
		return notSeedable(config, err, emptyStore(config))
	case incomplete && interrupted:
		return fmt.Errorf("%w: %w; before you repeat the command, %s", ErrInterrupted, err, emptyStore(config))
	case incomplete:
		return fmt.Errorf("cluster %q: %w; before you repeat the command, %s", config.Name, err, emptyStore(config))
	case interrupted:
		return fmt.Errorf("%w; repeat the command", ErrInterrupted)
	}
	return err
}
