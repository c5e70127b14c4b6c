package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/kube"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
	"github.com/k8s-1m/k8s-1m/internal/cluster/supervisor"
	"github.com/k8s-1m/k8s-1m/internal/util/process"
)

const (
	// namespace contains the objects of the experiment.
	namespace = "k1m-bench"
	userAgent = "k1m-bench/1"

	smallObject = "small"

	pollInterval = 100 * time.Millisecond
	mebibyte     = 1 << 20
	kibibyte     = 1 << 10
	// A load runs for this share of its duration before it is measured.
	warmUpShare = 4
	// clusterConnections is the number of connections with which the experiment creates objects.
	clusterConnections = 16
	createConcurrency  = 64
)

// lab is a cluster with fronts before its API servers.
type lab struct {
	*bench
	*experiment.Cluster
	target target
	// admin are the credentials of the administrator, who is not in system:masters. exempt are those of a
	// member of system:masters, whom API Priority and Fairness does not limit.
	admin       *rest.Config
	tls, exempt *tls.Config
}

// withLab creates a cluster, calls use, and removes the cluster. suffix ends the titles of its charts.
func (b *bench) withLab(ctx context.Context, suffix string, settings clusterdir.Settings, use func(context.Context, *lab) error) (err error) {
	cluster, err := b.Up(ctx, settings, suffix, clusterConnections, b.options.Timeout)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close(cluster, false)) }()
	cluster.Sampler.SampleUsageOnly()
	l := &lab{bench: b, Cluster: cluster, target: target{pki: cluster.Dir.PKI()}}
	if l.target.dir, err = os.MkdirTemp("", "k1m-bench-gateway-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(l.target.dir)) }()
	for i := range settings.APIServers {
		l.target.servers = append(l.target.servers, cluster.Config.Ports.Address(clusterdir.APIServerName(i)))
	}
	if l.admin, err = kube.Config(cluster.Dir.Kubeconfig(pki.Admin.File)); err != nil {
		return err
	}
	l.admin.UserAgent = userAgent
	if l.tls, err = rest.TLSConfigFor(l.admin); err != nil {
		return err
	}
	if l.exempt, err = rest.TLSConfigFor(cluster.Rest); err != nil {
		return err
	}
	if err := l.createObjects(ctx); err != nil {
		return err
	}
	return use(ctx, l)
}

// createObjects creates the namespace and the objects that small GETs read.
func (l *lab) createObjects(ctx context.Context) error {
	if err := l.Clients.EnsureNamespace(ctx, namespace); err != nil {
		return err
	}
	meta := metav1.ObjectMeta{Name: smallObject, Namespace: namespace}
	lease := &coordinationv1.Lease{ObjectMeta: meta, Spec: coordinationv1.LeaseSpec{
		HolderIdentity: new(smallObject), LeaseDurationSeconds: new(int32(40)), RenewTime: &metav1.MicroTime{Time: time.Now()},
	}}
	if _, err := l.Client.CoordinationV1().Leases(namespace).Create(ctx, lease, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating a Lease: %w", err)
	}
	config := &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"key": strings.Repeat("x", 200)}}
	if _, err := l.Client.CoreV1().ConfigMaps(namespace).Create(ctx, config, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating a ConfigMap: %w", err)
	}
	return nil
}

// names returns the fronts to compare: those of wanted that can run on this machine.
func (b *bench) names(wanted ...string) []string {
	return slices.DeleteFunc(wanted, func(name string) bool { return name == haproxy && !b.haproxy })
}

// with starts a front in front of the target, calls use, and stops the front.
func (t target) with(ctx context.Context, name string, use func(*front) error) error {
	f, err := t.start(ctx, name)
	if err != nil {
		return err
	}
	defer f.stop()
	return use(f)
}

// oneServer returns the settings of a cluster with one API server and without nodes. The API server and
// the store have CPUs of their own, so that fronts and clients do not slow them down.
func oneServer(cores int) clusterdir.Settings {
	settings := clusterdir.DefaultSettings()
	settings.Nodes, settings.Gateway = 0, new(false)
	if servers, _ := coreLists(cores); servers != "" {
		settings.CPUs = []string{clusterdir.APIServerName(0) + "=" + servers, component.Store + "=" + servers}
	}
	return settings
}

// process returns the process of a component.
func (l *lab) process(name string) (process.Identity, error) {
	state, err := supervisor.ReadState(l.Cluster.Dir)
	if err != nil {
		return process.Identity{}, err
	}
	i := slices.IndexFunc(state.Components, func(c supervisor.ComponentState) bool { return c.Name == name })
	if i < 0 {
		return process.Identity{}, fmt.Errorf("the cluster has no component %s", name)
	}
	return state.Components[i].Process, nil
}

// await waits until done returns the wanted number.
func (l *lab) await(ctx context.Context, what string, wanted int, done func() int) error {
	return l.Await(ctx, what, wanted, l.options.Timeout, done)
}
