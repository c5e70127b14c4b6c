package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

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
	case s.StoreAddress == "" && !s.KeepsData():
		return usage.Errorf("--seed-store: with --wal-mode %s the store loses the nodes when it is started again; choose buffered or fsync", s.WALMode)
	}
	return nil
}

// notSeedable returns the error of a cluster whose store is not empty, with the remedy.
func notSeedable(dir clusterdir.Dir, reason error) error {
	return fmt.Errorf("cluster %q: --seed-store needs an empty store, but %w; omit the flag to create missing nodes through the API, or remove the cluster with `k1m down --name %s`",
		dir.Name(), reason, dir.Name())
}

// seedNodes writes the nodes of the settings directly into the store of a cluster that is not running.
func seedNodes(ctx context.Context, o UpOptions, config clusterdir.Config) error {
	nodes, err := newNodes(config.Settings)
	if err != nil {
		return err
	}
	task := o.Display.Task("nodes seeded", config.Settings.Nodes)
	took := time.Duration(0)
	options := seed.Options{
		Nodes: nodes, Range: bulk.Range{Prefix: bulk.NodePrefix, Count: config.Settings.Nodes},
		Prefix: config.Settings.EtcdPrefix(), Progress: task.Set,
	}
	use := func(ctx context.Context, store component.StoreClient) error {
		client, err := store.Dial(ctx, seedDialTimeout)
		if err != nil {
			return err
		}
		defer client.Close()
		started := time.Now()
		defer func() { took = time.Since(started) }()
		return seed.Run(ctx, client, options)
	}
	if config.Settings.StoreAddress != "" {
		err = use(ctx, component.NewStoreClient(config, o.Dir))
	} else {
		err = withStore(ctx, o.Dir, config, use)
	}
	switch {
	case ctx.Err() != nil:
		err = fmt.Errorf("%w; repeat the command", ErrInterrupted)
	case errors.Is(err, seed.ErrNotEmpty):
		err = notSeedable(o.Dir, err)
	}
	if err != nil {
		progress.Fail(ctx, task, err.Error())
		return err
	}
	task.Done(fmt.Sprintf("%d nodes and Leases, %.0f nodes/s", options.Range.Count, float64(options.Range.Count)/took.Seconds()))
	return nil
}
