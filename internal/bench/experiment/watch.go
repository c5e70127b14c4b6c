package experiment

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/kube"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
)

// Watch samples a running cluster without an experiment. The caller must call Stop.
func Watch(dir clusterdir.Dir, of clusterdir.Config) (*Sampler, error) {
	config, err := kube.Config(dir.Kubeconfig(pki.SuperAdmin.File))
	if err != nil {
		return nil, err
	}
	return newSampler(dir, of, config, "", time.Now())
}

// Recent returns the last points of all series, without the series of this process.
func (s *Sampler) Recent(points int) []Series {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.DeleteFunc(s.lines.all(), func(series Series) bool { return series.Name == loader })
	for i := range all {
		all[i].Points = slices.Clone(all[i].Points[max(0, len(all[i].Points)-points):])
	}
	return all
}

// Stop stops the sampling.
func (s *Sampler) Stop() { s.close() }

// collections is the number of garbage collections after which pools are empty: objects in a
// sync.Pool survive one collection.
const collections = 3

// Collect triggers garbage collections in the Go processes of a role, so that their memory
// metrics show live objects only.
func (s *Sampler) Collect(ctx context.Context, role string) error {
	discard := func(body io.Reader) error {
		_, err := io.Copy(io.Discard, body)
		return err
	}
	for _, of := range s.pages(role) {
		// The heap profile endpoint runs a collection first if gc=1.
		profile := strings.TrimSuffix(of.URL, "/metrics") + "/debug/pprof/heap?gc=1"
		for range collections {
			if err := read(ctx, s.client, profile, discard); err != nil {
				return fmt.Errorf("collecting the garbage of %s: %w", of.Component, err)
			}
		}
	}
	return nil
}

// Totals returns the sums of metrics over all processes of a role: by metric, and by the value of
// the label that is given for the metric, or by "".
func (s *Sampler) Totals(ctx context.Context, role string, labels map[string]string) (map[string]map[string]float64, error) {
	needed, totals := map[string]bool{}, map[string]map[string]float64{}
	for metric := range labels {
		needed[metric], totals[metric] = true, map[string]float64{}
	}
	for _, of := range s.pages(role) {
		page, err := scrape(ctx, s.client, of.URL, needed)
		if err != nil {
			return nil, fmt.Errorf("reading the metrics of %s: %w", of.Component, err)
		}
		for metric, label := range labels {
			for _, m := range page[metric].GetMetric() {
				totals[metric][labelsOf(m)[label]] += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return totals, nil
}
