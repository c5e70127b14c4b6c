package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/vishvananda/netlink"
)

// status is what the pages show. Its fields are set when the agent has its prefix.
type status struct {
	conflicts atomic.Int64
	serving   atomic.Pointer[serving]
}

var (
	descConflicts  = prometheus.NewDesc("network_agent_prefix_conflicts_total", "Attempts to claim a prefix that another node has.", nil, nil)
	descReady      = prometheus.NewDesc("network_agent_ready", "1 if the node has a prefix and pods can start.", nil, nil)
	descPrefix     = prometheus.NewDesc("network_agent_prefix_info", "The prefix of the pods of this node.", []string{"prefix"}, nil)
	descPods       = prometheus.NewDesc("network_agent_pods", "Pods that are bound to their address.", nil, nil)
	descStale      = prometheus.NewDesc("network_agent_stale_pods", "Pods with an address of an earlier prefix, which have no network.", nil, nil)
	descAnswers    = prometheus.NewDesc("network_agent_neighbour_solicitations_total", "Neighbour solicitations for addresses of the prefix.", []string{"result"}, nil)
	descDropped    = prometheus.NewDesc("network_agent_dropped_packets_total", "Packets that the filter dropped or rejected.", []string{"reason"}, nil)
	descNeighbours = prometheus.NewDesc("network_agent_neighbour_entries", "Entries of the kernel's table of neighbours that are not permanent.", nil, nil)
	descLimit      = prometheus.NewDesc("network_agent_neighbour_entries_limit", "Limit of the kernel's table of neighbours; absent in a namespace that cannot see it.", nil, nil)
)

// Describe implements prometheus.Collector.
func (s *status) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descConflicts, descReady, descPrefix, descPods, descStale, descAnswers, descDropped, descNeighbours, descLimit} {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (s *status) Collect(metrics chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	counter := func(d *prometheus.Desc, value uint64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
	}
	counter(descConflicts, uint64(s.conflicts.Load()))
	now := s.serving.Load()
	if now == nil {
		gauge(descReady, 0)
		return
	}
	gauge(descReady, 1)
	gauge(descPrefix, 1, now.state.Pods.String())
	gauge(descPods, float64(now.pods.count.Load()))
	gauge(descStale, float64(now.pods.stale.Load()))
	if now.responder != nil {
		counts := now.responder.Counts()
		counter(descAnswers, counts.Answered, "answered")
		counter(descAnswers, counts.Ignored, "ignored")
		counter(descAnswers, counts.Failed, "failed")
	}
	if dropped, err := now.pods.filter.Counters(); err == nil {
		for reason, count := range dropped {
			counter(descDropped, count, reason)
		}
	}
	collectNeighbours(gauge)
}

func collectNeighbours(gauge func(*prometheus.Desc, float64, ...string)) {
	if entries, err := netlink.NeighList(0, netlink.FAMILY_V6); err == nil {
		count := 0
		for _, e := range entries {
			if e.State&(netlink.NUD_PERMANENT|netlink.NUD_NOARP) == 0 {
				count++
			}
		}
		gauge(descNeighbours, float64(count))
	}
	if limit := readNumber("ipv6/neigh/default/gc_thresh3"); limit >= 0 {
		gauge(descLimit, float64(limit))
	}
}

// serve serves the pages until ctx ends.
func (s *status) serve(ctx context.Context, listener net.Listener) error {
	registry := prometheus.NewRegistry()
	registry.MustRegister(s)
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if s.serving.Load() == nil {
			http.Error(w, "the node has no prefix yet; see the log", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}
