package experiment

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/kube"
	"github.com/k8s-1m/k8s-1m/internal/cluster/lifecycle"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
)

// ErrClusterExists means that a run cannot create its cluster, because a cluster of this name exists and
// is not running.
var ErrClusterExists = errors.New("cluster exists already")

// DefaultCluster is the name of the cluster that a run creates and removes if --name is not set.
const DefaultCluster = "bench"

// minFreeDisk is the free disk space that is required to create a cluster.
var minFreeDisk = resource.MustParse("512Mi")

// Cluster is the cluster that an experiment uses. Its clients have administrator rights.
type Cluster struct {
	Dir    clusterdir.Dir
	Config clusterdir.Config
	// Rest connects to the first API server.
	Rest *rest.Config
	// Clients and Client connect to the gateways, if the cluster has any.
	Clients *bulk.Clients
	Client  kubernetes.Interface
	Sampler *Sampler

	// own reports that this run created the cluster.
	own bool
}

// Own reports whether the run created the cluster. [Run.Close] removes only such a cluster.
func (c *Cluster) Own() bool { return c.own }

// UsesExisting reports whether the user selected a cluster that is running, which the run then uses.
func (r *Run) UsesExisting() bool { return r.Named && lifecycle.RequireRunning(r.Dir) == nil }

// Up creates a cluster, or connects to the running cluster that the user selected. The titles of the
// charts of its sampler end with the suffix. The caller must call Close.
func (r *Run) Up(ctx context.Context, settings clusterdir.Settings, suffix string, connections int, timeout time.Duration) (*Cluster, error) {
	if r.UsesExisting() {
		config, err := clusterdir.Load(r.Dir)
		if err != nil {
			return nil, err
		}
		return r.connect(config, suffix, connections, false)
	}
	if r.Dir.Exists() {
		return nil, fmt.Errorf("cluster %q: %w and is not running; start it with `k1m up --name %s`, or remove it with `k1m down --name %s`",
			r.Dir.Name(), ErrClusterExists, r.Dir.Name(), r.Dir.Name())
	}
	return r.start(ctx, settings, suffix, connections, lifecycle.UpOptions{Timeout: timeout})
}

// UpSeeded creates a cluster whose nodes are written directly into the store, with the profile of the settings, as
// `k1m up --seed-store` does. announce is called with the profile, if there is one. The caller must call Close.
func (r *Run) UpSeeded(
	ctx context.Context, settings clusterdir.Settings, suffix string, connections int, timeout time.Duration, announce func(clusterdir.AppliedProfile),
) (*Cluster, error) {
	if r.Dir.Exists() {
		return nil, fmt.Errorf("cluster %q: %w; remove it with `k1m down --name %s`", r.Dir.Name(), ErrClusterExists, r.Dir.Name())
	}
	return r.start(ctx, settings, suffix, connections, lifecycle.UpOptions{Timeout: timeout, SeedStore: true, AnnounceProfile: announce})
}

// start starts the cluster with settings. Of the options, only those that differ between clusters must be set. If it
// fails, the cluster is removed.
func (r *Run) start(ctx context.Context, settings clusterdir.Settings, suffix string, connections int, options lifecycle.UpOptions) (*Cluster, error) {
	flags, err := settings.Flags()
	if err != nil {
		return nil, err
	}
	options.Dir, options.Flags, options.MinFree, options.Display = r.Dir, flags, minFreeDisk, r.Display
	up, err := lifecycle.Up(ctx, options)
	if err != nil && r.KeepFailed {
		return nil, err
	}
	if err != nil {
		return nil, errors.Join(err, remove(r.Dir))
	}
	c, err := r.connect(up.Config, suffix, connections, true)
	if err != nil {
		return nil, errors.Join(err, remove(r.Dir))
	}
	return c, nil
}

// Restart stops a cluster that the run created, and starts it with other settings and the same objects. c is
// closed, whether or not Restart fails. If it fails, the cluster is removed.
func (r *Run) Restart(ctx context.Context, c *Cluster, settings clusterdir.Settings, suffix string, connections int, timeout time.Duration) (*Cluster, error) {
	r.endSampling(c)
	if err := r.stopWith(settings); err != nil {
		return nil, errors.Join(err, remove(r.Dir))
	}
	return r.start(ctx, settings, suffix, connections, lifecycle.UpOptions{Timeout: timeout})
}

// stopWith stops the cluster, and saves settings in place of its own. Up would only override those that differ from
// the defaults.
func (r *Run) stopWith(settings clusterdir.Settings) error {
	if err := lifecycle.Down(r.Dir, true); err != nil {
		return err
	}
	config, err := clusterdir.Load(r.Dir)
	if err != nil {
		return err
	}
	settings.Complete()
	config.Settings = settings
	return config.Save(r.Dir)
}

// connect creates the clients and the sampler of a running cluster. own reports that the run created it.
func (r *Run) connect(config clusterdir.Config, suffix string, connections int, own bool) (*Cluster, error) {
	c := &Cluster{Dir: r.Dir, Config: config, own: own}
	var err error
	if c.Rest, err = kube.Config(r.Dir.Kubeconfig(pki.SuperAdmin.File)); err != nil {
		return nil, err
	}
	if err := c.connect(connections); err != nil {
		return nil, err
	}
	c.Sampler, err = newSampler(r.Dir, config, c.Rest, suffix, r.Result.Time)
	return c, err
}

// connect creates the clients.
func (c *Cluster) connect(connections int) (err error) {
	urls := component.ClientURLs(c.Config)
	if c.Clients, err = bulk.NewClients(c.Rest, urls, connections); err != nil {
		return err
	}
	first := rest.CopyConfig(c.Rest)
	first.Host = urls[0]
	if c.Client, err = kubernetes.NewForConfig(first); err != nil {
		return fmt.Errorf("connecting to %s: %w", urls[0], err)
	}
	return nil
}

// Close appends the series of the sampler to the result. It removes the cluster if this run created it and
// keep is false.
func (r *Run) Close(c *Cluster, keep bool) error {
	r.endSampling(c)
	if !c.own || keep {
		return nil
	}
	return remove(r.Dir)
}

// endSampling appends the series of the sampler to the result.
func (r *Run) endSampling(c *Cluster) {
	series, failedPages := c.Sampler.close()
	r.Result.Series = append(r.Result.Series, series...)
	if failedPages > 0 {
		r.Result.Note("%d metrics pages could not be read; the series have gaps there.", failedPages)
	}
}

// remove stops and removes a cluster, if it exists.
func remove(dir clusterdir.Dir) error {
	err := lifecycle.Down(dir, false)
	if errors.Is(err, clusterdir.ErrUnknown) {
		return nil
	}
	return err
}

// AwaitQuiet waits until the control plane is idle after its start or after objects were created.
// Otherwise the next measurement would include work that remains from that. It waits for at most 10 s.
func (c *Cluster) AwaitQuiet(ctx context.Context) error {
	const (
		sample  = 500 * time.Millisecond
		quiet   = sample / 5 // maximum CPU time of an idle cluster during a sample
		samples = 20
	)
	cpuTime := func() (total time.Duration) {
		for role, usage := range c.Sampler.Usage() {
			if role != loader {
				total += usage.CPU
			}
		}
		return total
	}
	before, lastUsed := cpuTime(), time.Duration(0)
	for range samples {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(sample):
		}
		now := cpuTime()
		used := now - before
		// A cluster with many nodes always uses CPU. CPU usage that differs by less than 10 % from that
		// of the last sample is therefore accepted as well.
		if used < quiet || lastUsed > 0 && used > lastUsed*9/10 && used < lastUsed*11/10 {
			return nil
		}
		before, lastUsed = now, used
	}
	return nil
}
