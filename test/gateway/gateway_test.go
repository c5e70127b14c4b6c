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
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	clusterName    = "gateway"
	startTimeout   = 30 * time.Second
	commandTimeout = 3 * time.Minute
	pollInterval   = 100 * time.Millisecond
)

// cluster is a k1m cluster with two API servers and a gateway in front of them.
type cluster struct {
	bin, home string
	// servers are the host:port of the API servers.
	servers []string
	// gateway is the host:port of the gateway, and metrics that of its pages.
	gateway, metrics string
	// process is the gateway.
	process *exec.Cmd
	// configPath is the path of the administrator's kubeconfig.
	configPath string
	findConfig *sync.Once
}

// newCluster starts a cluster and its gateway. Both end with the test.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	bin := binaries(t)
	for _, name := range []string{"k1m", "kube-gateway", "mem_etcd", "kube-apiserver", "kwok", "kubectl", "h2spec"} {
		if _, err := exec.LookPath(filepath.Join(bin, name)); err != nil {
			t.Fatalf("%v; run `make build`, or set K1M_BIN to the directory of the binaries", err)
		}
	}
	c := &cluster{bin: bin, home: t.TempDir(), findConfig: &sync.Once{}}
	c.k1m(t, "up", "--name", clusterName, "--nodes", "10", "--apiservers", "2", "--kwok-arg", "config="+c.writeStreams(t))
	t.Cleanup(func() { c.k1m(t, "down", "--name", clusterName) })
	c.findServers(t)
	c.gateway, c.metrics = freeAddress(t), freeAddress(t)
	c.startGateway(t)
	return c
}

// binaries returns the directory of the binaries.
func binaries(t *testing.T) string {
	t.Helper()
	bin := os.Getenv("K1M_BIN")
	if bin == "" {
		bin = filepath.Join("..", "..", "bin")
	}
	bin, err := filepath.Abs(bin)
	must(t, err)
	return bin
}

// k1m runs k1m and returns its output. It fails the test if the exit code is not 0.
func (c *cluster) k1m(t *testing.T, args ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(c.bin, "k1m"), args...)
	cmd.Env = append(os.Environ(), "K1M_HOME="+c.home)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("k1m %s: %v\n%s%s", strings.Join(args, " "), err, out, stderr.Bytes())
	}
	return out
}

// component is a process of the cluster.
type component struct {
	Name, State, Address string
	PID                  int
}

func (c *cluster) components(t *testing.T) []component {
	t.Helper()
	var status struct{ Components []component }
	must(t, json.Unmarshal(c.k1m(t, "status", "--name", clusterName, "-o", "json"), &status))
	return status.Components
}

func (c *cluster) findServers(t *testing.T) {
	t.Helper()
	for _, component := range c.components(t) {
		if strings.HasPrefix(component.Name, "kube-apiserver") {
			c.servers = append(c.servers, strings.TrimPrefix(component.Address, "https://"))
		}
	}
	if len(c.servers) != 2 {
		t.Fatalf("the cluster has the API servers %v, want two", c.servers)
	}
}

// serverPID returns the process of an API server.
func (c *cluster) serverPID(t *testing.T, address string) int {
	t.Helper()
	for _, component := range c.components(t) {
		if component.Address == "https://"+address {
			return component.PID
		}
	}
	t.Fatalf("no API server has the address %s", address)
	return 0
}

// pki returns the path of a certificate or key of the cluster.
func (c *cluster) pki(name string) string {
	return filepath.Join(c.home, "clusters", clusterName, "pki", name)
}

// gatewayFile returns the path of a file of this gateway. A test can start several gateways, and each reloads its
// configuration.
func (c *cluster) gatewayFile(name string) string {
	return filepath.Join(c.home, "gateway-"+strings.ReplaceAll(c.gateway, ":", "-"), name)
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
`, c.gateway, c.metrics, c.pki("apiserver.crt"), c.pki("apiserver.key"), c.pki("ca.crt"),
		c.servers[0], c.servers[1], c.pki("ca.crt"), c.pki("front-proxy-client.crt"), c.pki("front-proxy-client.key"))
}

// startGateway starts the gateway and waits until it is ready. It ends with the test.
func (c *cluster) startGateway(t *testing.T) {
	t.Helper()
	config := c.gatewayFile("gateway.yaml")
	must(t, os.MkdirAll(filepath.Dir(config), 0o700))
	must(t, os.WriteFile(config, []byte(c.configuration()), 0o600))
	log, err := os.Create(c.gatewayFile("gateway.log"))
	must(t, err)
	c.process = exec.Command(filepath.Join(c.bin, "kube-gateway"), "--config", config)
	c.process.Stderr = log
	c.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, c.process.Start())
	t.Cleanup(func() {
		_ = c.process.Process.Kill()
		_ = c.process.Wait()
		if t.Failed() {
			if text, err := os.ReadFile(log.Name()); err == nil {
				t.Logf("log of the gateway:\n%s", text)
			}
		}
	})
	eventually(t, startTimeout, "the gateway is ready with both API servers", func() bool {
		return strings.Count(c.page("/metrics"), "kube_gateway_server_ready{") == 2 &&
			strings.Count(c.page("/metrics"), "} 1\n") >= 2 && c.page("/readyz") == "ok"
	})
}

// page returns a page of the gateway, or an empty text.
func (c *cluster) page(path string) string { return page(c.metrics, path) }

// page returns a page that a gateway serves at an address, or an empty text.
func page(address, path string) string {
	response, err := http.Get("http://" + address + path)
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	var text bytes.Buffer
	_, _ = text.ReadFrom(response.Body)
	return text.String()
}

// admin returns the configuration of the administrator's client for an address.
func (c *cluster) admin(t *testing.T, address string) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("https://"+address, c.kubeconfig(t))
	must(t, err)
	config.QPS = -1
	return config
}

// client returns a client of the administrator for an address.
func (c *cluster) client(t *testing.T, address string) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(c.admin(t, address))
	must(t, err)
	return client
}

// freeAddress returns a loopback address with a port that was free.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer listener.Close()
	return listener.Addr().String()
}

// eventually waits until a condition is true.
func eventually(t *testing.T, timeout time.Duration, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(timeout); !condition(); time.Sleep(pollInterval) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", timeout, what)
		}
	}
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
