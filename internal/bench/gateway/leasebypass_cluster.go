package gateway

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	kubegateway "github.com/k8s-1m/k8s-1m/deploy/kube-gateway"
	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/kube"
)

// variant is a way to serve kube-controller-manager's watch of Leases.
type variant struct {
	name             string
	uncached, served bool
}

const cachedVariant = "cached"

// variants are the variants in the order in which they run.
var variants = []variant{
	{name: cachedVariant}, {name: "uncached", uncached: true}, {name: "served", served: true}, {name: "served-uncached", uncached: true, served: true},
}

func variantNames() (names []string) {
	for _, v := range variants {
		names = append(names, v.name)
	}
	return names
}

// bypassSettings returns the settings that all clusters of the experiment share. kwok simulates no nodes, and watches no
// Leases.
func bypassSettings() clusterdir.Settings {
	settings := clusterdir.DefaultSettings()
	settings.Nodes, settings.Gateway = 0, new(false)
	settings.KwokArgs = []string{"node-lease-duration-seconds=0"}
	return settings
}

// settings returns the settings of the cluster with a variant. file is where the fields of the gateway's configuration
// are. kube-controller-manager always connects to the API server, whose URL is server.
func (v variant) settings(file, server string) clusterdir.Settings {
	settings := bypassSettings()
	if v.uncached {
		settings.APIServerArgs = []string{"watch-cache-sizes=leases.coordination.k8s.io#0"}
	}
	if v.served {
		settings.Gateway, settings.GatewayConfig = new(true), file
		settings.ControllerManagerArgs = []string{"master=" + server}
	}
	return settings
}

// createNodes creates a cluster with nodes and Leases. While they are created, their Leases are not renewed, so
// kube-controller-manager has a long grace period.
func (r *bypassRun) createNodes(ctx context.Context) (*experiment.Cluster, error) {
	settings := bypassSettings()
	settings.ControllerManagerArgs = []string{"node-monitor-grace-period=1h"}
	cluster, err := r.Up(ctx, settings, ", nodes are created", clusterConnections, r.own.Timeout)
	if err != nil {
		return nil, err
	}
	cluster.Sampler.SampleUsageOnly()
	// kube-gateway, which comes later, must be allowed to watch.
	if err := kube.Apply(ctx, cluster.Rest, kubegateway.NodePath); err != nil {
		return cluster, fmt.Errorf("applying the permissions of the node path: %w", err)
	}
	config := rest.CopyConfig(cluster.Rest)
	config.UserAgent = kubeletAgent
	kubelets, err := bulk.NewClients(config, component.APIServerURLs(cluster.Config), clusterConnections)
	if err != nil {
		return cluster, err
	}
	nodes, err := bulk.NewNodes(bulk.DefaultNodeShape())
	if err != nil {
		return cluster, err
	}
	task := r.Display.Task("nodes and Leases created", r.own.Nodes.N)
	load := experiment.Load{
		Workers: createConcurrency, Count: r.own.Nodes.N, Kind: bulk.ErrorKind,
		Latencies: experiment.NewLatencies(), Tally: experiment.NewTally(0), Progress: task.Set,
		Do: func(ctx context.Context, number, worker int) error {
			name := bulk.Range{Prefix: bulk.NodePrefix}.Name(number)
			return register(ctx, kubelets.Connection(worker%clusterConnections), registered(nodes.Make(name, number)))
		},
	}
	load.Run(ctx)
	r.Result.Errors.Merge(load.Tally)
	if err := errors.Join(ctx.Err(), load.Tally.Err()); err != nil {
		task.Interrupt()
		return cluster, fmt.Errorf("creating nodes: %w", err)
	}
	task.Done(fmt.Sprint(r.own.Nodes.N))
	// kube-controller-manager removes the taint of each new node.
	s, err := newStoreView(ctx, cluster)
	if err != nil {
		return cluster, err
	}
	defer s.close()
	return cluster, r.awaitQuiet(ctx, s, "nodes settle", nil)
}

// registered returns a node as a kubelet that is ready registers it. It has no annotation by which kwok finds it, and the
// one that the TTL controller would add.
func registered(node *corev1.Node) *corev1.Node {
	delete(node.Annotations, kube.SimulatedNodeAnnotation)
	node.Annotations["node.alpha.kubernetes.io/ttl"] = "300"
	now := metav1.Now()
	node.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status",
		LastHeartbeatTime: now, LastTransitionTime: now,
	}}
	return node
}

// register creates a node and its Lease as a kubelet does.
func register(ctx context.Context, client kubernetes.Interface, node *corev1.Node) error {
	created, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: node.Name, Namespace: corev1.NamespaceNodeLease,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: created.UID}},
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new(node.Name), LeaseDurationSeconds: new(int32(leaseSeconds)), RenewTime: &metav1.MicroTime{Time: time.Now()},
		},
	}
	_, err = client.CoordinationV1().Leases(lease.Namespace).Create(ctx, lease, metav1.CreateOptions{})
	return err
}

// start starts the cluster with the settings of a variant. If it returns no cluster, there is none any more.
func (r *bypassRun) start(ctx context.Context, cluster *experiment.Cluster, v variant) (_ *experiment.Cluster, err error) {
	directory, err := os.MkdirTemp("", "k1m-bench-lease-bypass-")
	if err != nil {
		return cluster, err
	}
	// The gateway's configuration is a copy.
	defer func() { err = errors.Join(err, os.RemoveAll(directory)) }()
	file := filepath.Join(directory, "gateway.yaml")
	leases := map[string]any{"mode": "shadow", "watch": "on"}
	if err := writeFields(file, map[string]any{"nodePath": map[string]any{"leases": leases}}); err != nil {
		return cluster, err
	}
	cluster, err = r.Restart(ctx, cluster, v.settings(file, component.APIServerURLs(cluster.Config)[0]), ", "+v.name, clusterConnections, r.own.Timeout)
	if err != nil {
		return nil, err
	}
	cluster.Sampler.SampleUsageOnly()
	return cluster, nil
}
