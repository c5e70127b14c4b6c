package app

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/k8s-1m/k8s-1m/internal/network/gateway/dataplane"
)

// collector makes metrics of counters when they are asked for.
type collector struct {
	g *gateway

	mu       sync.Mutex
	statuses map[int]uint64 // answers to registrations
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("network_gateway_"+name, help, labels, nil)
}

var (
	descNodes        = desc("nodes", "Nodes that exist, as far as this gateway selects them.")
	descPeers        = desc("peers", "Nodes that are connected.")
	descRemoved      = desc("peers_removed_total", "Nodes that were disconnected, by reason.", "reason")
	descSessions     = desc("connections", "Connections of NAT64.")
	descHandshakes   = desc("handshakes_total", "WireGuard handshakes.")
	descNoHandshake  = desc("handshakes_dropped_total", "Handshake messages that were dropped because the queue was full.")
	descDropped      = desc("packets_dropped_total", "Packets that were dropped, by reason.", "reason")
	descErrors       = desc("io_errors_total", "Errors of sockets and of the TUN device.", "operation")
	descRequests     = desc("registrations_total", "Requests of nodes, by status of the answer.", "code")
	descNodeSessions = desc("node_connections", "Connections of a node in NAT64; only the nodes with the most.", "node")
	descNodePorts    = desc("node_ports", "Ports of the pool that a node uses; only the nodes with the most connections.", "node")
	descNodeBytes    = desc("node_bytes_total", "Bytes of a node; only the nodes with the most connections.", "node", "direction", "mode")
	descQueries      = desc("dns64_queries_total", "Queries to DNS64.")
	descSynthesized  = desc("dns64_synthesized_total", "Answers of DNS64 that were synthesized.")
	descRefused      = desc("dns64_refused_total", "Queries that DNS64 refused, because of the client or of too many at a time.")
	descUpstream     = desc("dns64_upstream_errors_total", "Questions that no upstream resolver answered.")
)

// Describe describes nothing: the metrics of nodes change.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

func counter(out chan<- prometheus.Metric, d *prometheus.Desc, value uint64, labels ...string) {
	out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
}

func gauge(out chan<- prometheus.Metric, d *prometheus.Desc, value int, labels ...string) {
	out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), labels...)
}

// Collect sends the metrics.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	nodes, peers, removed := c.g.registry.Counts()
	gauge(out, descNodes, nodes)
	gauge(out, descPeers, peers)
	for reason, count := range removed {
		counter(out, descRemoved, count, reason)
	}
	totals := c.g.plane.Totals()
	gauge(out, descSessions, totals.Sessions)
	counter(out, descHandshakes, totals.Handshakes)
	counter(out, descNoHandshake, totals.HandshakesDropped)
	for reason, count := range totals.Dropped {
		counter(out, descDropped, count, reason)
	}
	for operation, count := range totals.Errors {
		counter(out, descErrors, count, operation)
	}
	c.mu.Lock()
	for status, count := range c.statuses {
		counter(out, descRequests, count, strconv.Itoa(status))
	}
	c.mu.Unlock()
	c.collectNodes(out)
	c.collectDNS(out)
}

// collectNodes sends metrics of the nodes with the most connections, so that their number is bounded.
func (c *collector) collectNodes(out chan<- prometheus.Metric) {
	for _, n := range busiest(c.g.plane.Nodes(), c.g.settings.metricsNodes) {
		if n.NAT64 != nil {
			gauge(out, descNodeSessions, n.NAT64.Sessions, n.Name)
			gauge(out, descNodePorts, n.NAT64.Ports, n.Name)
			counter(out, descNodeBytes, n.NAT64.BytesOut, n.Name, "out", "nat64")
			counter(out, descNodeBytes, n.NAT64.BytesIn, n.Name, "in", "nat64")
		}
		counter(out, descNodeBytes, n.Masquerade.BytesOut, n.Name, "out", "masquerade")
		counter(out, descNodeBytes, n.Masquerade.BytesIn, n.Name, "in", "masquerade")
	}
}

func (c *collector) collectDNS(out chan<- prometheus.Metric) {
	if c.g.dns == nil {
		return
	}
	counters := &c.g.dns.Counters
	counter(out, descQueries, counters.Queries.Load())
	counter(out, descSynthesized, counters.Synthesized.Load())
	counter(out, descRefused, counters.Refused.Load())
	counter(out, descUpstream, counters.UpstreamErrors.Load())
}

// busiest returns the nodes with the most connections, then with the most bytes.
func busiest(nodes []dataplane.NodeStats, limit int) []dataplane.NodeStats {
	sessions := func(n dataplane.NodeStats) int {
		if n.NAT64 == nil {
			return 0
		}
		return n.NAT64.Sessions
	}
	slices.SortFunc(nodes, func(a, b dataplane.NodeStats) int {
		return cmp.Or(cmp.Compare(sessions(b), sessions(a)), cmp.Compare(b.Masquerade.BytesIn, a.Masquerade.BytesIn), cmp.Compare(a.Name, b.Name))
	})
	return nodes[:min(limit, len(nodes))]
}

func (c *collector) countStatus(status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.statuses[status]++
}

// pages returns the handler of the metrics address.
func (g *gateway) pages() (http.Handler, error) {
	registry := prometheus.NewRegistry()
	for _, c := range []prometheus.Collector{g.collector, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /nodes", func(w http.ResponseWriter, _ *http.Request) {
		nodes := g.plane.Nodes()
		slices.SortFunc(nodes, func(a, b dataplane.NodeStats) int { return cmp.Compare(a.Name, b.Name) })
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(nodes) // the client has gone
	})
	return mux, nil
}
