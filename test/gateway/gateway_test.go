// Package gateway tests kube-gateway in front of real API servers: every answer through it is compared
// with the answer of an API server itself.
//
//	K1M_BIN           directory of the binaries (default ../../bin)
//	GATEWAY_REQUESTS     number of random requests (default 400)
//	GATEWAY_SEED         their seed, or "random" (default 1)
//	GATEWAY_CONNECTIONS  number of connections that are open at the same time (default 1,000)
//	GATEWAY_FAULTS       number of faults under load (default: one of each of the kinds that take little time)
//	GATEWAY_FAULTS_SEED  their seed
package gateway

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

// startTimeout bounds the time for whatever a test waits for. A machine without other work needs seconds.
const startTimeout = 3 * time.Minute

// cluster is a k1m cluster with two API servers and a gateway in front of them.
type cluster struct {
	testcluster.Cluster
	// gateway is the host:port of the gateway, and metrics that of its pages.
	gateway, metrics string
	// process is the gateway.
	process *exec.Cmd
	// kubeconfig is the path of the administrator's kubeconfig.
	kubeconfig string
}

// newCluster starts a cluster and its gateway. Both end with the test.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{Cluster: testcluster.New(t, "gateway", "k1m", "kube-gateway", "mem_etcd", "kube-apiserver", "kwok", "kubectl", "h2spec")}
	c.Up(t, "--nodes", "10", "--kwok-arg", "config="+c.writeStreams(t))
	c.kubeconfig = c.Kubeconfig(t)
	c.gateway, c.metrics = testcluster.FreeAddress(t), testcluster.FreeAddress(t)
	c.startGateway(t)
	return c
}

// gatewayFile returns the path of a file of this gateway. A test can start several gateways, and each reloads its
// configuration.
func (c *cluster) gatewayFile(name string) string {
	return filepath.Join(c.Home, "gateway-"+strings.ReplaceAll(c.gateway, ":", "-"), name)
}

// configuration returns the gateway's configuration.
func (c *cluster) configuration() string {
	return fmt.Sprintf(`apiVersion: gateway.k8s-1m.dev/v1alpha1
kind: GatewayConfiguration
listen:
  address: %q
  metricsAddress: %q
  certFile: %q
  keyFile: %q
  clientCaFile: %q
upstream:
  servers: [%q, %q]
  caFile: %q
requestHeader:
  certFile: %q
  keyFile: %q
control:
  socket: control.sock
`, c.gateway, c.metrics, c.PKI("apiserver.crt"), c.PKI("apiserver.key"), c.PKI("ca.crt"),
		c.Servers[0], c.Servers[1], c.PKI("ca.crt"), c.PKI("front-proxy-client.crt"), c.PKI("front-proxy-client.key"))
}

// startGateway starts the gateway and waits until it is ready. It ends with the test.
func (c *cluster) startGateway(t *testing.T) {
	t.Helper()
	config := c.gatewayFile("gateway.yaml")
	must(t, os.MkdirAll(filepath.Dir(config), 0o700))
	must(t, os.WriteFile(config, []byte(c.configuration()), 0o600))
	c.process = testcluster.StartGateway(t, c.Bin, config, c.gatewayFile("gateway.log"))
	testcluster.Eventually(t, startTimeout, "the gateway is ready with both API servers", func() bool {
		return strings.Count(c.page("/metrics"), "kube_gateway_server_ready{") == 2 &&
			strings.Count(c.page("/metrics"), "} 1\n") >= 2 && c.page("/readyz") == "ok"
	})
}

// page returns a page of the gateway, or an empty text.
func (c *cluster) page(path string) string { return testcluster.Page(c.metrics, path) }

// admin returns the configuration of the administrator's client for an address.
func (c *cluster) admin(t *testing.T, address string) *rest.Config {
	t.Helper()
	return testcluster.Admin(t, c.kubeconfig, address)
}

// client returns a client of the administrator for an address.
func (c *cluster) client(t *testing.T, address string) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(c.admin(t, address))
	must(t, err)
	return client
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// dialer gives each client a connection of its own: client-go shares transports between clients whose
// configurations are equal.
type dialer struct{ net.Dialer }
