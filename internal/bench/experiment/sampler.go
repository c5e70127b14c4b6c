package experiment

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"k8s.io/client-go/rest"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/supervisor"
	"github.com/k8s-1m/k8s-1m/internal/util/process"
)

const (
	// SampleInterval is the interval between two samples.
	SampleInterval = time.Second
	// scrapeTimeout is the maximum time for reading a metrics page. After a timeout the series have
	// a gap.
	scrapeTimeout = 5 * time.Second

	// loader is the role of this process, which generates the load.
	loader = "k1m"

	// CPUPlot is the title of the chart of CPU usage in cores.
	CPUPlot = "CPU"
)

// Sampler samples CPU, memory and metrics of each component of a cluster every second. The
// process that generates the load is sampled as role k1m.
type Sampler struct {
	dir    clusterdir.Dir
	config clusterdir.Config
	client *http.Client
	// suffix is appended to the titles of all charts: the contender.
	suffix string
	begun  time.Time

	stop    context.CancelFunc
	stopped sync.WaitGroup

	mu    sync.Mutex
	lines *lines
	last  Usage
	lastT time.Time
	// windows are the open windows; each sample updates their peak memory.
	windows map[*Window]bool
	failed  int
}

// Usage maps roles to the resources that their processes have used.
type Usage map[string]process.Usage

// newSampler starts a sampler that reads the metrics pages of a cluster with the given credentials.
// Times of series are relative to begun, and chart titles end with the suffix.
func newSampler(dir clusterdir.Dir, config clusterdir.Config, credentials *rest.Config, suffix string, begun time.Time) (*Sampler, error) {
	client, err := rest.HTTPClientFor(credentials)
	if err != nil {
		return nil, fmt.Errorf("connecting to the API server: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Sampler{
		dir: dir, config: config, client: client, suffix: suffix, begun: begun,
		stop: stop, lines: newLines(), windows: map[*Window]bool{},
	}
	s.stopped.Go(func() { s.run(ctx) })
	return s, nil
}

func (s *Sampler) run(ctx context.Context) {
	ticks := time.NewTicker(SampleInterval)
	defer ticks.Stop()
	for {
		s.sample(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
	}
}

// close stops the sampling and returns the series, and the number of pages that could not be
// read.
func (s *Sampler) close() (series []Series, failed int) {
	s.stop()
	s.stopped.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lines.all(), s.failed
}

func (s *Sampler) sample(ctx context.Context) {
	at := time.Now()
	usage := s.Usage()
	s.mu.Lock()
	s.noteUsage(usage, at)
	s.mu.Unlock()

	families := s.scrapeAll(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range rules {
		totals, histograms := map[string]float64{}, map[string]Histogram{}
		for _, page := range families[r.of] {
			if family := page[r.metric]; family != nil {
				r.collect(family, totals, histograms)
			}
		}
		s.lines.take(r, s.suffix, totals, histograms, at, at.Sub(s.begun).Seconds())
	}
}

// Usage returns the usage of all processes now. A process that is being restarted is left out.
func (s *Sampler) Usage() Usage {
	usage := Usage{}
	add := func(role string, id process.Identity) {
		if taken, err := id.Usage(); err == nil {
			sum := usage[role]
			usage[role] = process.Usage{CPU: sum.CPU + taken.CPU, Resident: sum.Resident + taken.Resident}
		}
	}
	if self, err := process.Of(os.Getpid()); err == nil {
		add(loader, self)
	}
	state, err := supervisor.ReadState(s.dir)
	if err != nil {
		return usage
	}
	for _, c := range state.Components {
		add(component.RoleOf(c.Name), c.Process)
	}
	return usage
}

func (s *Sampler) noteUsage(usage Usage, at time.Time) {
	seconds := at.Sub(s.begun).Seconds()
	for _, role := range sortedKeys(usage) {
		now := usage[role]
		memory := Series{Plot: "memory" + s.suffix, Name: role, X: Seconds, Unit: "MiB"}
		s.lines.add(memory, seconds, float64(now.Resident)/(1<<20))
		if before, known := s.last[role]; known && now.CPU >= before.CPU {
			cpu := Series{Plot: CPUPlot + s.suffix, Name: role, X: Seconds, Unit: "cores"}
			s.lines.add(cpu, seconds, (now.CPU-before.CPU).Seconds()/at.Sub(s.lastT).Seconds())
		}
		for w := range s.windows {
			w.peak[role] = max(w.peak[role], now.Resident)
		}
	}
	s.last, s.lastT = usage, at
}

// scrapeAll reads the metrics pages of all components concurrently, and returns them by role.
func (s *Sampler) scrapeAll(ctx context.Context) map[string][]map[string]*dto.MetricFamily {
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	pages := map[string][]map[string]*dto.MetricFamily{}
	var mu sync.Mutex
	var group sync.WaitGroup
	for _, of := range component.MetricsEndpoints(s.config) {
		needed := neededOf(of.Role)
		if len(needed) == 0 {
			continue
		}
		group.Go(func() {
			page, err := scrape(ctx, s.client, of.URL, needed)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				if ctx.Err() == nil {
					s.fail()
				}
				return
			}
			pages[of.Role] = append(pages[of.Role], page)
		})
	}
	group.Wait()
	return pages
}

func (s *Sampler) fail() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed++
}

// pages returns the metrics pages of a role.
func (s *Sampler) pages(role string) []component.MetricsEndpoint {
	return slices.DeleteFunc(component.MetricsEndpoints(s.config), func(p component.MetricsEndpoint) bool { return p.Role != role })
}

// calls returns the request durations that the API servers have counted so far.
func (s *Sampler) calls(ctx context.Context) durations {
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	all := durations{}
	for _, of := range s.pages(apiServer) {
		page, err := scrape(ctx, s.client, of.URL, map[string]bool{callDurations: true})
		if err != nil {
			s.fail()
			continue
		}
		all.add(page[callDurations])
	}
	return all
}

// Mean sums the lines of a chart at each sample, and returns the mean of these sums. since is the first
// second of the run to include.
func (s *Sampler) Mean(plot string, since float64) float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lines.mean(plot+s.suffix, since)
}

// Window is a period of time in which resource usage and API calls are measured.
type Window struct {
	sampler *Sampler
	begun   time.Time
	usage   Usage
	calls   durations
	peak    map[string]int64
}

// Measured is the result of a window.
type Measured struct {
	Seconds float64
	// CPU time, memory at the end, and peak memory in bytes, by role.
	CPU      map[string]time.Duration
	Resident map[string]int64
	Peak     map[string]int64
	Calls    []Call
}

// Begin opens a window.
func (s *Sampler) Begin(ctx context.Context) *Window {
	w := &Window{sampler: s, calls: s.calls(ctx), usage: s.Usage(), begun: time.Now(), peak: map[string]int64{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.windows[w] = true
	return w
}

// End closes the window and returns its measurements.
func (w *Window) End(ctx context.Context) Measured {
	s := w.sampler
	now, seconds := s.Usage(), time.Since(w.begun).Seconds()
	m := Measured{Seconds: seconds, CPU: map[string]time.Duration{}, Resident: map[string]int64{}}
	for role, usage := range now {
		m.CPU[role], m.Resident[role] = usage.CPU, usage.Resident
		// The CPU time is smaller than before if the process was restarted; then all of it is
		// new.
		if before := w.usage[role]; before.CPU <= usage.CPU {
			m.CPU[role] -= before.CPU
		}
	}
	m.Calls = s.calls(ctx).since(w.calls)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.windows, w)
	m.Peak = maps.Clone(w.peak)
	for role, resident := range m.Resident {
		m.Peak[role] = max(m.Peak[role], resident)
	}
	return m
}

// Cores returns the average number of cores that a role used.
func (m Measured) Cores(role string) float64 { return m.CPU[role].Seconds() / m.Seconds }

// MicrosPer returns the CPU time of a role per operation, in microseconds.
func (m Measured) MicrosPer(role string, operations int) float64 {
	return float64(m.CPU[role].Microseconds()) / float64(max(operations, 1))
}
