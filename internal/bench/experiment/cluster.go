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

// ErrClusterExists is returned when a run would have to replace an existing cluster.
var ErrClusterExists = errors.New("cluster exists already")

// DefaultCluster is the name of the cluster that a run creates and removes.
const DefaultCluster = "bench"

// minFreeDisk is the disk space that a cluster needs in addition to its objects.
var minFreeDisk = resource.MustParse("512Mi")

// Cluster is the cluster that an experiment uses, with clients that have administrator rights.
type Cluster struct {
	Dir     clusterdir.Dir
	Config  clusterdir.Config
	Rest    *rest.Config
	Clients *bulk.Clients
	Client  kubernetes.Interface
	Sampler *Sampler

	// own reports that this run created the cluster.
	own bool
}

// Own reports whether the run created the cluster, and so removes it.
func (c *Cluster) Own() bool { return c.own }

// UsesExisting reports whether the run uses a cluster that is already running.
func (r *Run) UsesExisting() bool { return r.Named && lifecycle.RequireRunning(r.Dir) == nil }

// Up creates a cluster, or connects to the running cluster that the user named. The titles of the
// charts of its samples end with the suffix. The caller must call Close.
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
	flags, err := settings.Flags()
	if err != nil {
		return nil, err
	}
	up, err := lifecycle.Up(ctx, lifecycle.UpOptions{
		Dir: r.Dir, Flags: flags, Timeout: timeout, MinFree: minFreeDisk, Display: r.Display,
	})
	if err != nil {
		return nil, errors.Join(err, remove(r.Dir))
	}
	c, err := r.connect(up.Config, suffix, connections, true)
	if err != nil {
		return nil, errors.Join(err, remove(r.Dir))
	}
	return c, nil
}

func (r *Run) connect(config clusterdir.Config, suffix string, connections int, own bool) (*Cluster, error) {
	c := &Cluster{Dir: r.Dir, Config: config, own: own}
	var err error
	if c.Rest, err = kube.Config(r.Dir.Kubeconfig(pki.SuperAdmin.File)); err != nil {
		return nil, err
	}
	if c.Clients, err = bulk.NewClients(c.Rest, component.APIServerURLs(config), connections); err != nil {
		return nil, err
	}
	if c.Client, err = kubernetes.NewForConfig(c.Rest); err != nil {
		return nil, fmt.Errorf("connecting to the API server: %w", err)
	}
	c.Sampler, err = newSampler(r.Dir, config, c.Rest, suffix, r.Result.Time)
	return c, err
}

// Close appends the samples to the result, and removes the cluster if this run created it and
// keep is false.
func (r *Run) Close(c *Cluster, keep bool) error {
	series, failed := c.Sampler.close()
	r.Result.Series = append(r.Result.Series, series...)
	if failed > 0 {
		r.Result.Note("%d metrics pages could not be read in time; the series have gaps there.", failed)
	}
	if !c.own || keep {
		return nil
	}
	return remove(r.Dir)
}

func remove(dir clusterdir.Dir) error {
	err := lifecycle.Down(dir, false)
	if errors.Is(err, clusterdir.ErrUnknown) {
		return nil
	}
	return err
}

// AwaitQuiet waits until a control plane that has just started, or was just filled, is idle.
// Otherwise its remaining work would count as a cost of the next measurement. It returns after 10
// s at the latest.
func (c *Cluster) AwaitQuiet(ctx context.Context) error {
	const (
		sample  = 500 * time.Millisecond
		quiet   = sample / 5 // CPU time per sample of an idle cluster
		samples = 20
	)
	busy := func() (total time.Duration) {
		for role, usage := range c.Sampler.Usage() {
			if role != loader {
				total += usage.CPU
			}
		}
		return total
	}
	before, spent := busy(), time.Duration(0)
	for range samples {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(sample):
		}
		now := busy()
		// A cluster with many nodes is never idle; steady CPU usage is accepted as well.
		if taken := now - before; taken < quiet || spent > 0 && taken > spent*9/10 && taken < spent*11/10 {
			return nil
		} else {
			spent = taken
		}
		before = now
	}
	return nil
}
