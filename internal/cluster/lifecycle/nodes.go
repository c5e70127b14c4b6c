package lifecycle

import (
	"context"
	"fmt"

	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/kube"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
)

// ensureNodes creates those nodes of the settings that do not exist, and waits until the nodes of the
// settings are Ready. It returns the number of all nodes of the cluster.
func ensureNodes(ctx context.Context, o UpOptions, config clusterdir.Config) (int, error) {
	rest, err := kube.Config(o.Dir.Kubeconfig(pki.SuperAdmin.File))
	if err != nil {
		return 0, err
	}
	options := bulk.DefaultOptions(bulk.NodePrefix)
	options.Range.Count = config.Settings.Nodes
	clients, err := bulk.NewClients(rest, component.ClientURLs(config), options.Connections)
	if err != nil {
		return 0, err
	}
	if options.Range.Count > 0 {
		if err := createNodes(ctx, o, config, clients, options); err != nil {
			return 0, err
		}
	}
	return bulk.CountNodes(ctx, clients)
}

// newNodes returns a builder for the nodes of a cluster.
func newNodes(s clusterdir.Settings) (*bulk.Nodes, error) {
	shape := bulk.DefaultNodeShape()
	shape.Zones = s.Zones
	return bulk.NewNodes(shape)
}

// createMissing creates the nodes that do not exist.
func createMissing(ctx context.Context, o UpOptions, config clusterdir.Config, clients *bulk.Clients, options bulk.Options) error {
	nodes, err := newNodes(config.Settings)
	if err != nil {
		return err
	}
	creating := o.Display.Task("nodes created", options.Range.Count)
	options.Progress = creating.Set
	summary, err := bulk.CreateNodes(ctx, clients, nodes, options)
	if err != nil {
		progress.Fail(ctx, creating, err.Error())
		return fmt.Errorf("creating nodes: %w", err)
	}
	creating.Done(fmt.Sprintf("%d new, %d existed", summary.Done, summary.Skipped))
	return nil
}

// createNodes creates missing nodes, unless the store was seeded with them, and waits until the nodes are Ready.
func createNodes(ctx context.Context, o UpOptions, config clusterdir.Config, clients *bulk.Clients, options bulk.Options) error {
	if !o.SeedStore {
		if err := createMissing(ctx, o, config, clients, options); err != nil {
			return err
		}
	}
	ready := o.Display.Task("nodes ready", options.Range.Count)
	options.Progress = ready.Set
	if err := bulk.AwaitNodesReady(ctx, clients, options, o.Timeout); err != nil {
		progress.Fail(ctx, ready, err.Error())
		return fmt.Errorf("waiting for nodes: %w; see `k1m logs %s --name %s`", err, config.Settings.NodeSimulator, config.Name)
	}
	ready.Done(fmt.Sprintf("%d of %d", options.Range.Count, options.Range.Count))
	return nil
}
