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

// serve answers /healthz and /metrics until the returned function is called.
func serve(address string, recorder *recorder) (stop func() error, err error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serving health and metrics: %w", err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		newCollector(recorder),
	)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { writeHealth(w, recorder.snapshot()) })
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go server.Serve(listener)
	return server.Close, nil
}

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

// collector reports the recorded state as metrics.
type collector struct {
	recorder     *recorder
	ready, exits *prometheus.Desc
}

func newCollector(recorder *recorder) *collector {
	labels := []string{"component"}
	return &collector{
		recorder: recorder,
		ready:    prometheus.NewDesc("k1m_component_ready", "1 when the component answers its readiness probe.", labels, nil),
		exits:    prometheus.NewDesc("k1m_component_exits_total", "Ends of the component's process that nobody asked for.", labels, nil),
	}
}

func (c *collector) Describe(descs chan<- *prometheus.Desc) {
	descs <- c.ready
	descs <- c.exits
}

func (c *collector) Collect(metrics chan<- prometheus.Metric) {
	for _, component := range c.recorder.snapshot().Components {
		ready := 0.0
		if component.Phase == Ready {
			ready = 1
		}
		metrics <- prometheus.MustNewConstMetric(c.ready, prometheus.GaugeValue, ready, component.Name)
		metrics <- prometheus.MustNewConstMetric(c.exits, prometheus.CounterValue, float64(component.Exits), component.Name)
	}
}
