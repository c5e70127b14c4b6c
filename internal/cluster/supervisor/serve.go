package supervisor

import (
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// serve serves /healthz, /metrics and the paths of handlers until stop is called.
func serve(address string, stateFile *stateFile, handlers map[string]http.Handler) (stop func() error, err error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serving health and metrics: %w", err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		newCollector(stateFile),
	)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { writeHealth(w, stateFile.snapshot()) })
	for path, handler := range handlers {
		mux.Handle(path, handler)
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go server.Serve(listener)
	return server.Close, nil
}

// writeHealth writes "ok", or status 503 and the phases of all components.
func writeHealth(w http.ResponseWriter, state State) {
	if state.Healthy() {
		fmt.Fprintln(w, "ok")
		return
	}
	w.WriteHeader(http.StatusServiceUnavailable)
	for _, c := range state.Components {
		fmt.Fprintf(w, "%s: %s\n", c.Name, c.Phase)
	}
}

// collector exports the state of the components as metrics.
type collector struct {
	stateFile    *stateFile
	ready, exits *prometheus.Desc
}

func newCollector(stateFile *stateFile) *collector {
	labels := []string{"component"}
	return &collector{
		stateFile: stateFile,
		ready:     prometheus.NewDesc("k1m_component_ready", "Whether the component is ready: 1 if its readiness probe succeeds, otherwise 0.", labels, nil),
		exits:     prometheus.NewDesc("k1m_component_exits_total", "Number of exits of the component's process that the supervisor did not request.", labels, nil),
	}
}

func (c *collector) Describe(descs chan<- *prometheus.Desc) {
	descs <- c.ready
	descs <- c.exits
}

func (c *collector) Collect(metrics chan<- prometheus.Metric) {
	for _, component := range c.stateFile.snapshot().Components {
		ready := 0.0
		if component.Phase == Ready {
			ready = 1
		}
		metrics <- prometheus.MustNewConstMetric(c.ready, prometheus.GaugeValue, ready, component.Name)
		metrics <- prometheus.MustNewConstMetric(c.exits, prometheus.CounterValue, float64(component.Exits), component.Name)
	}
}
