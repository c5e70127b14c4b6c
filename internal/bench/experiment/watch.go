package experiment

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/kube"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
)

// StartSampler starts a sampler of a running cluster, without an experiment. The caller must call Stop.
func StartSampler(dir clusterdir.Dir, config clusterdir.Config) (*Sampler, error) {
	credentials, err := kube.Config(dir.Kubeconfig(pki.SuperAdmin.File))
	if err != nil {
		return nil, err
	}
	return newSampler(dir, config, credentials, "", time.Now())
}

// Recent returns the given number of last points of each series, without the series of this process.
func (s *Sampler) Recent(points int) []Series {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.DeleteFunc(s.lines.largest(), func(series Series) bool { return series.Name == loader })
	for i := range all {
		all[i].Points = slices.Clone(all[i].Points[max(0, len(all[i].Points)-points):])
	}
	return all
}

// Stop stops the sampling.
func (s *Sampler) Stop() { s.close() }

// collections is the number of garbage collections after which the sync.Pools of a process are empty. A
// single collection is not enough, because objects in a sync.Pool survive it.
const collections = 3

// CollectGarbage triggers garbage collections in the processes of a role, which must be Go programs.
// Their memory metrics then count live objects only.
func (s *Sampler) CollectGarbage(ctx context.Context, role string) error {
	discard := func(body io.Reader) error {
		_, err := io.Copy(io.Discard, body)
		return err
	}
	for _, endpoint := range s.endpoints(role) {
		// With gc=1 the endpoint of the heap profile runs a garbage collection first.
		profile := strings.TrimSuffix(endpoint.URL, "/metrics") + "/debug/pprof/heap?gc=1"
		for range collections {
			if err := get(ctx, s.client, profile, discard); err != nil {
				return fmt.Errorf("collecting the garbage of %s: %w", endpoint.Component, err)
			}
		}
	}
	return nil
}

// Totals returns the sums of metrics over all processes of a role, by metric and label value. labels
// contains a label for each metric: there is a sum per value of this label. If the label is "", there is
// one sum, whose key is "".
func (s *Sampler) Totals(ctx context.Context, role string, labels map[string]string) (map[string]map[string]float64, error) {
	needed, totals := map[string]bool{}, map[string]map[string]float64{}
	for metric := range labels {
		needed[metric], totals[metric] = true, map[string]float64{}
	}
	for _, endpoint := range s.endpoints(role) {
		page, err := scrape(ctx, s.client, endpoint.URL, needed)
		if err != nil {
			return nil, fmt.Errorf("reading the metrics of %s: %w", endpoint.Component, err)
		}
		for metric, label := range labels {
			for _, m := range page[metric].GetMetric() {
				totals[metric][labelsOf(m)[label]] += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return totals, nil
}

// CountEvents reads a watch in protobuf and counts its events without decoding them, so that one process can
// have many watches. It always returns an error: that with which the watch ended.
func CountEvents(watch io.Reader, events *atomic.Int64) error {
	// An event is a protobuf message, preceded by its length in four bytes.
	var length [4]byte
	for {
		if _, err := io.ReadFull(watch, length[:]); err != nil {
			return fmt.Errorf("watch closed: %w", err)
		}
		if _, err := io.CopyN(io.Discard, watch, int64(binary.BigEndian.Uint32(length[:]))); err != nil {
			return fmt.Errorf("watch closed: %w", err)
		}
		events.Add(1)
	}
}
