package status

import (
	"strings"
	"testing"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
)

const gatewayPage = `# TYPE kube_gateway_client_connections gauge
kube_gateway_client_connections 7
# TYPE kube_gateway_connections_moved_total counter
kube_gateway_connections_moved_total 3
# TYPE kube_gateway_server_ready gauge
kube_gateway_server_ready{server="127.0.0.1:1"} 1
kube_gateway_server_ready{server="127.0.0.1:2"} 0
# TYPE kube_gateway_server_connections gauge
kube_gateway_server_connections{server="127.0.0.1:1"} 5
kube_gateway_server_connections{server="127.0.0.1:2"} 2
# TYPE kube_gateway_server_watches gauge
kube_gateway_server_watches{server="127.0.0.1:1"} 40
kube_gateway_server_watches{server="127.0.0.1:2"} 2
# TYPE kube_gateway_server_requests_in_flight gauge
kube_gateway_server_requests_in_flight{server="127.0.0.1:1"} 1
`

// TestGatewayIsReadAndPrinted checks that the API servers of a gateway have the names of their components,
// and that their loads are in the right rows.
func TestGatewayIsReadAndPrinted(t *testing.T) {
	config := clusterdir.NewConfig("test", clusterdir.Settings{APIServers: 2, Gateway: new(true), Gateways: 1})
	config.Ports["kube-apiserver"], config.Ports["kube-apiserver-1"] = 1, 2
	g, err := parseGateway(config, "kube-gateway", strings.NewReader(gatewayPage))
	if err != nil {
		t.Fatal(err)
	}
	want := []GatewayServer{{"kube-apiserver", true, 5, 40, 1}, {"kube-apiserver-1", false, 2, 2, 0}}
	if g.ClientConnections != 7 || g.MovedConnections != 3 || len(g.Servers) != 2 || g.Servers[0] != want[0] || g.Servers[1] != want[1] {
		t.Errorf("parseGateway() = %+v, want 7 connections, 3 of them moved, and the servers %+v", g, want)
	}
	var out strings.Builder
	s := Status{Name: "test", Gateways: []Gateway{g}, Components: []Component{{Name: "kube-gateway"}}}
	if err := s.Print(&out, true); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"Gateway:    kube-gateway has 7 client connections and 42 watches; 1 of 2 API servers ready\n",
		"kube-gateway  kube-apiserver-1  false  2            2        0\n",
	} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("Print() wrote\n%s\nwant %q in it", &out, line)
		}
	}
}
