package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/client-go/rest"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/bench/storeserver"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
)

const (
	floodClients    = 64
	storeTimeout    = 10 * time.Second
	quietWrites     = 20 // writes per second of a cluster that has settled
	quietInterval   = 2 * time.Second
	quietIntervals  = 60 // after so many, the cluster counts as settled
	anyKey          = "k1m-bench"
	metricsDeadline = 10 * time.Second
)

// storeView reads the revision of the store of Leases, which each write increases by one.
type storeView struct {
	client *clientv3.Client
	config component.StoreClient
}

func newStoreView(ctx context.Context, cluster *experiment.Cluster) (*storeView, error) {
	config := component.NewStoreClient(cluster.Config, cluster.Dir, cluster.Config.Settings.StoreOf(clusterdir.LeasesResource))
	client, err := config.Dial(ctx, storeTimeout)
	if err != nil {
		return nil, err
	}
	return &storeView{client, config}, nil
}

// close closes the connection. The error is ignored, because nothing depends on it.
func (s *storeView) close() { _ = s.client.Close() }

// revision returns the current revision.
func (s *storeView) revision(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	response, err := s.client.Get(ctx, anyKey, clientv3.WithCountOnly())
	if err != nil {
		return 0, fmt.Errorf("reading the store's revision: %w", err)
	}
	return response.Header.Revision, nil
}

// awaitQuiet waits until the cluster hardly writes. Before each look it calls renew, if this is not nil.
func (r *bypassRun) awaitQuiet(ctx context.Context, s *storeView, what string, renew func() error) error {
	task := r.Display.Task(what, 0)
	for range quietIntervals {
		writes, err := s.writesAfter(ctx, renew)
		if err != nil {
			task.Interrupt()
			return err
		}
		if float64(writes) <= quietWrites*quietInterval.Seconds() {
			break
		}
	}
	task.Done("done")
	return nil
}

// writesAfter calls renew, if this is not nil, and returns the writes to the store in a [quietInterval] after it.
func (s *storeView) writesAfter(ctx context.Context, renew func() error) (int64, error) {
	if renew != nil {
		if err := renew(); err != nil {
			return 0, err
		}
	}
	before, err := s.revision(ctx)
	if err == nil {
		err = experiment.Sleep(ctx, quietInterval)
	}
	if err != nil {
		return 0, err
	}
	after, err := s.revision(ctx)
	return after - before, err
}

// startRenewal renews the Leases at a rate, until it is stopped or, with a total of more than 0, so many times.
func (s *storeView) startRenewal(ctx context.Context, rate, total, nodes int) (*storeserver.Client, error) {
	arguments := []string{"lease-flood", "--existing", "--clients", strconv.Itoa(min(floodClients, nodes)), "--rate", strconv.Itoa(rate),
		"--endpoints", s.config.Endpoint, "--cacert", s.config.CAFile, "--cert", s.config.CertFile, "--key", s.config.KeyFile, "--output", "json"}
	if total > 0 {
		arguments = append(arguments, "--total", strconv.Itoa(total))
	} else {
		arguments = append(arguments, "--duration", "1h")
	}
	return storeserver.StartBench(ctx, arguments...)
}

// reportOf waits for the end of etcd-bench. Failed renewals are a part of the report.
func reportOf(ctx context.Context, load *storeserver.Client) (storeserver.Report, error) {
	report, err := load.Report(ctx)
	if errors.Is(err, storeserver.ErrOperations) {
		err = nil
	}
	return report, err
}

// pages reads metrics of a cluster.
type pages struct {
	client    *http.Client
	endpoints []component.MetricsEndpoint
}

func newPages(cluster *experiment.Cluster) (*pages, error) {
	client, err := rest.HTTPClientFor(cluster.Rest)
	return &pages{client, component.MetricsEndpoints(cluster.Config)}, err
}

// sum returns the sum of the samples of a metric of the processes of a role, whose labels contain a text. ok reports
// whether there are any.
func (p *pages) sum(ctx context.Context, role, name, labels string) (total float64, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, metricsDeadline)
	defer cancel()
	for _, endpoint := range p.endpoints {
		if endpoint.Role != role {
			continue
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, endpoint.URL, nil)
		if err != nil {
			return 0, false
		}
		response, err := p.client.Do(request)
		if err != nil {
			return 0, false
		}
		found, err := parseMetric(response.Body, name)
		_ = response.Body.Close()
		if err != nil || response.StatusCode != http.StatusOK {
			return 0, false
		}
		if sum, found := sumOf(found, labels); found {
			total, ok = total+sum, true
		}
	}
	return total, ok
}
