package experiment

import (
	"testing"

	"k8s.io/client-go/rest"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
)

// TestClientsUseGateways checks the servers to which the clients of experiments connect.
func TestClientsUseGateways(t *testing.T) {
	for gateway, want := range map[bool][]string{
		true:  {"kube-gateway", "kube-gateway-1"},
		false: {"kube-apiserver", "kube-apiserver-1"},
	} {
		settings := clusterdir.DefaultSettings()
		settings.APIServers, settings.Gateway = 2, &gateway
		if gateway {
			settings.Gateways = 2
		}
		settings.Complete()
		config := clusterdir.NewConfig("test", settings)
		for i, name := range settings.PortNames() {
			config.Ports[name] = 1000 + i
		}
		c := &Cluster{Config: config, Rest: &rest.Config{Host: config.Ports.URL("kube-apiserver")}}
		if err := c.connect(2); err != nil {
			t.Fatal(err)
		}
		for i, name := range want {
			if host := c.Clients.Connection(i).CoreV1().RESTClient().Get().URL().Host; host != config.Ports.Address(name) {
				t.Errorf("gateway %v: connection %d is to %s, want %s", gateway, i, host, name)
			}
		}
		if host := c.Client.CoreV1().RESTClient().Get().URL().Host; host != config.Ports.Address(want[0]) {
			t.Errorf("gateway %v: the client connects to %s, want %s", gateway, host, want[0])
		}
		if c.Rest.Host != config.Ports.URL("kube-apiserver") {
			t.Errorf("gateway %v: Rest connects to %s, want the API server", gateway, c.Rest.Host)
		}
	}
}
