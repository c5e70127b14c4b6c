package experiment

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster"
)

// Watch samples a cluster that runs, without a run of an experiment. The caller stops it.
func Watch(dir cluster.Dir, config cluster.Config) (*Sampler, error) {
	run := &Run{Dir: dir, Given: true, Result: &Result{Time: time.Now()}}
	c, err := run.connect(config, "", 1, false)
	if err != nil {
		return nil, err
	}
	return c.Sampler, nil
}

// Recent are the last points of all series; those of this process are left out.
func (s *Sampler) Recent(points int) []Series {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.DeleteFunc(s.lines.all(), func(series Series) bool { return series.Name == loader })
	for i := range all {
		all[i].Points = slices.Clone(all[i].Points[max(0, len(all[i].Points)-points):])
	}
	return all
}

// Stop ends the sampling.
func (s *Sampler) Stop() { s.close() }

// liveHeap is a metric of Go processes: what lived after the last collection.
const liveHeap = "go_gc_heap_live_bytes"

// Live is the memory that lives in the processes of a role, in bytes. What is resident
// depends on when they last collected garbage.
func (s *Sampler) Live(ctx context.Context, role string) (float64, error) {
	live := 0.0
	for name, url := range s.pages() {
		if roleOf(name) != role {
			continue
		}
		page, err := scrape(ctx, s.client, url, map[string]bool{liveHeap: true})
		if err != nil {
			return 0, fmt.Errorf("reading the metrics of %s: %w", name, err)
		}
		for _, metric := range page[liveHeap].GetMetric() {
			live += metric.GetGauge().GetValue()
		}
	}
	return live, nil
}
