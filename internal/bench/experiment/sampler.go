package experiment

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
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
	// scrapeTimeout is the time limit for reading the metrics pages of all components. After a timeout
	// the series have a gap.
	scrapeTimeout = 5 * time.Second

	// loader is the role of this process, which generates the load.
	loader = "k1m"

	// CPUPlot is the title of the chart of CPU usage in cores.
	CPUPlot = "CPU"
)

// Sampler samples CPU usage, memory and metrics of each component of a cluster every second. It also
// samples this process, which generates the load, as the role k1m.
type Sampler struct {
	dir    clusterdir.Dir
	config clusterdir.Config
	client *http.Client
	// suffix is appended to the titles of all charts. It names the contender.
	suffix string
	begun  time.Time // start of the run

	stop    context.CancelFunc
	stopped sync.WaitGroup
	// usageOnly is true if the metrics pages are not read.
	usageOnly atomic.Bool

	mu    sync.Mutex
	lines *lines
	// last is the usage at the last sample, which was taken at lastTime.
	last     Usage
	lastTime time.Time
	// windows are the open windows. Each sample updates their peak memory.
	windows map[*Window]bool
	// failedPages counts the metrics pages that could not be read.
	failedPages int
}

// Usage maps roles to the CPU time and memory of their processes.
type Usage map[string]process.Usage

// newSampler starts a sampler, which reads the metrics pages of a cluster with the given credentials. The
// times of its series are relative to begun. The titles of its charts end with the suffix.
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

// SampleUsageOnly stops reading the metrics pages. Only CPU usage and memory are sampled from then on. A page of
// an API server costs it 0.1 s of CPU, which a measurement of latencies would show.
func (s *Sampler) SampleUsageOnly() { s.usageOnly.Store(true) }

// close stops the sampling. It returns the series and the number of metrics pages that could not be read.
func (s *Sampler) close() (series []Series, failedPages int) {
	s.stop()
	s.stopped.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lines.largest(), s.failedPages
}

// sample takes one sample of the usage and the metrics of all components.
func (s *Sampler) sample(ctx context.Context) {
	at := time.Now()
	usage := s.Usage()
	s.mu.Lock()
	s.addUsage(usage, at)
	s.mu.Unlock()

	if s.usageOnly.Load() {
		return
	}
	families := s.scrapeAll(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range rules {
		totals, histograms := map[string]float64{}, map[string]Histogram{}
		for _, page := range families[r.role] {
			if family := page[r.metric]; family != nil {
				r.collect(family, totals, histograms)
			}
		}
		s.lines.addSample(r, s.suffix, totals, histograms, at, at.Sub(s.begun).Seconds())
	}
}

// Usage returns the current usage of all processes by role. It omits processes that are being restarted.
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

// addUsage appends the usage of all roles to the series, and updates the peak memory of open windows.
func (s *Sampler) addUsage(usage Usage, at time.Time) {
	seconds := at.Sub(s.begun).Seconds()
	for _, role := range sortedKeys(usage) {
		now := usage[role]
		memory := Series{Plot: "memory" + s.suffix, Name: role, X: Seconds, Unit: "MiB"}
		s.lines.add(memory, seconds, float64(now.Resident)/(1<<20))
		if before, known := s.last[role]; known && now.CPU >= before.CPU {
			cpu := Series{Plot: CPUPlot + s.suffix, Name: role, X: Seconds, Unit: "cores"}
			s.lines.add(cpu, seconds, (now.CPU-before.CPU).Seconds()/at.Sub(s.lastTime).Seconds())
		}
		for w := range s.windows {
			w.peak[role] = max(w.peak[role], now.Resident)
		}
	}
	s.last, s.lastTime = usage, at
}

// scrapeAll reads the metrics pages of all components concurrently, and returns them by role.
func (s *Sampler) scrapeAll(ctx context.Context) map[string][]map[string]*dto.MetricFamily {
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	pages := map[string][]map[string]*dto.MetricFamily{}
	var mu sync.Mutex
	var group sync.WaitGroup
	for _, endpoint := range component.MetricsEndpoints(s.config) {
		needed := metricsOf(endpoint.Role)
		if len(needed) == 0 {
			continue
		}
		group.Go(func() {
			page, err := scrape(ctx, s.client, endpoint.URL, needed)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				if ctx.Err() == nil {
					s.countFailedPage()
				}
				return
			}
			pages[endpoint.Role] = append(pages[endpoint.Role], page)
		})
	}
	group.Wait()
	return pages
}

func (s *Sampler) countFailedPage() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failedPages++
}

// endpoints returns the metrics endpoints of a role.
func (s *Sampler) endpoints(role string) []component.MetricsEndpoint {
	return slices.DeleteFunc(component.MetricsEndpoints(s.config), func(p component.MetricsEndpoint) bool { return p.Role != role })
}

// calls returns the request durations that the API servers have counted so far.
func (s *Sampler) calls(ctx context.Context) durations {
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	all := durations{}
	for _, endpoint := range s.endpoints(apiServer) {
		page, err := scrape(ctx, s.client, endpoint.URL, map[string]bool{callDurations: true})
		if err != nil {
			s.countFailedPage()
			continue
		}
		all.add(page[callDurations])
	}
	return all
}

// Mean adds up the lines of a chart at each sample, and returns the mean of these sums. since is the first
// second of the run to include.
func (s *Sampler) Mean(plot string, since float64) float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lines.mean(plot+s.suffix, since)
}

// Window is a period of time for which resource usage and API calls are measured.
type Window struct {
	sampler *Sampler
	begun   time.Time
	usage   Usage            // at the start
	calls   durations        // at the start
	peak    map[string]int64 // memory in bytes by role
}

// Measured is the result of a window.
type Measured struct {
	Seconds float64
	// CPU is the CPU time of the window, Resident the memory at its end in bytes, and Peak the largest
	// memory of any sample in bytes, all by role.
	CPU      map[string]time.Duration
	Resident map[string]int64
	Peak     map[string]int64
	Calls    []Call
}

// Begin starts a window.
func (s *Sampler) Begin(ctx context.Context) *Window {
	w := &Window{sampler: s, calls: s.calls(ctx), usage: s.Usage(), begun: time.Now(), peak: map[string]int64{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.windows[w] = true
	return w
}

// End ends the window and returns what was measured in it.
func (w *Window) End(ctx context.Context) Measured {
	s := w.sampler
	now, seconds := s.Usage(), time.Since(w.begun).Seconds()
	m := Measured{Seconds: seconds, CPU: map[string]time.Duration{}, Resident: map[string]int64{}}
	for role, usage := range now {
		m.CPU[role], m.Resident[role] = usage.CPU, usage.Resident
		// A smaller CPU time than at the start means that the process was restarted. All of its CPU
		// time then belongs to the window.
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

// Cores returns the average number of cores that a role used during the window.
func (m Measured) Cores(role string) float64 { return m.CPU[role].Seconds() / m.Seconds }

// MicrosPer returns the CPU time of a role per operation, in microseconds.
func (m Measured) MicrosPer(role string, operations int) float64 {
	return float64(m.CPU[role].Microseconds()) / float64(max(operations, 1))
}
