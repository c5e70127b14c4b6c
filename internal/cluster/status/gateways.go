package status

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"text/tabwriter"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
)

const gatewayTimeout = 3 * time.Second

// Gateway is what a kube-gateway knows about its clients and its API servers.
type Gateway struct {
	Name              string `json:"name"`
	ClientConnections int    `json:"clientConnections"`
	// MovedConnections counts the connections that were told to dial again, for an even load, since
	// the process started.
	MovedConnections int             `json:"movedConnections"`
	Servers          []GatewayServer `json:"servers"`
}

// GatewayServer is the load that a gateway has sent to an API server.
type GatewayServer struct {
	Name             string `json:"name"`
	Ready            bool   `json:"ready"`
	Connections      int    `json:"connections"`
	Watches          int    `json:"watches"`
	RequestsInFlight int    `json:"requestsInFlight"`
}

// readGateways reads the metrics of all gateways concurrently. The result has only those that could be
// read.
func readGateways(ctx context.Context, config clusterdir.Config) (gateways []Gateway, problems []error) {
	ctx, cancel := context.WithTimeout(ctx, gatewayTimeout)
	defer cancel()
	names := config.Settings.GatewayNames()
	read, errs := make([]Gateway, len(names)), make([]error, len(names))
	var group sync.WaitGroup
	for i, name := range names {
		group.Go(func() { read[i], errs[i] = readGateway(ctx, config, name) })
	}
	group.Wait()
	for i, err := range errs {
		if err != nil {
			problems = append(problems, fmt.Errorf("reading the metrics of %s: %w", names[i], err))
			continue
		}
		gateways = append(gateways, read[i])
	}
	return gateways, problems
}

func readGateway(ctx context.Context, config clusterdir.Config, name string) (Gateway, error) {
	url := "http://" + config.Ports.Address(clusterdir.GatewayMetricsPort(name)) + "/metrics"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return Gateway{}, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return Gateway{}, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return Gateway{}, fmt.Errorf("%s returned %s", url, response.Status)
	}
	return parseGateway(config, name, response.Body)
}

// parseGateway reads the state of a gateway from its page of metrics.
func parseGateway(config clusterdir.Config, name string, page io.Reader) (Gateway, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(page)
	if err != nil {
		return Gateway{}, err
	}
	value := func(family, server string) int {
		return int(valueOf(families["kube_gateway_"+family], server))
	}
	g := Gateway{
		Name: name, ClientConnections: value("client_connections", ""), MovedConnections: value("connections_moved_total", ""),
		Servers: []GatewayServer{},
	}
	for i, url := range component.APIServerURLs(config) {
		address := url[len("https://"):]
		g.Servers = append(g.Servers, GatewayServer{
			Name: clusterdir.APIServerName(i), Ready: value("server_ready", address) == 1, Connections: value("server_connections", address),
			Watches: value("server_watches", address), RequestsInFlight: value("server_requests_in_flight", address),
		})
	}
	return g, nil
}

// valueOf returns the sum of those metrics of a family that have the label server; without a server, the
// sum of all.
func valueOf(family *dto.MetricFamily, server string) (sum float64) {
	for _, metric := range family.GetMetric() {
		matches := server == ""
		for _, label := range metric.GetLabel() {
			matches = matches || label.GetName() == "server" && label.GetValue() == server
		}
		if matches {
			sum += metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
		}
	}
	return sum
}

// String describes the gateway in one line.
func (g Gateway) String() string {
	ready, watches := 0, 0
	for _, server := range g.Servers {
		watches += server.Watches
		if server.Ready {
			ready++
		}
	}
	return fmt.Sprintf("%s has %d client connections and %d watches; %d of %d API servers ready", g.Name, g.ClientConnections, watches, ready, len(g.Servers))
}

// printGateways prints a table with the load that each gateway has sent to each API server.
func (s Status) printGateways(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "\nGATEWAY\tAPI SERVER\tREADY\tCONNECTIONS\tWATCHES\tIN FLIGHT")
	for _, g := range s.Gateways {
		for _, server := range g.Servers {
			fmt.Fprintf(table, "%s\t%s\t%v\t%d\t%d\t%d\n", g.Name, server.Name, server.Ready, server.Connections, server.Watches, server.RequestsInFlight)
		}
	}
	return table.Flush()
}
