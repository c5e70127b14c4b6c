// Package leases tests how kube-gateway serves renewals of node Leases from the store: in front of real API servers, with
// every stored value and every answer compared with those of kube-apiserver.
//
//	K1M_BIN             directory of the binaries (default ../../../bin)
//	NODE_PATH_RENEWALS  number of random renewals (default 1,000)
//	NODE_PATH_SEED      their seed, or "random" (default 1)
package leases

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
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	clusterName    = "node-path"
	startTimeout   = 30 * time.Second
	commandTimeout = 3 * time.Minute
	pollInterval   = 100 * time.Millisecond
	// comparisons is the number of comparisons after which a gateway of this test serves.
	comparisons = 50
)

// cluster is a k1m cluster with two API servers.
type cluster struct {
	bin, home string
	// servers are the host:port of the API servers.
	servers []string
	// storeURL is the URL of the store.
	storeURL string
	store    *clientv3.Client
	admin    kubernetes.Interface
}

// gateway is a process in front of the API servers.
type gateway struct {
	address, metrics, log string
}

// newCluster starts a cluster, which ends with the test.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	bin := os.Getenv("K1M_BIN")
	if bin == "" {
		bin = filepath.Join("..", "..", "..", "bin")
	}
	bin, err := filepath.Abs(bin)
	must(t, err)
	for _, name := range []string{"k1m", "kube-gateway", "mem_etcd", "kube-apiserver", "kwok", "kubectl"} {
		if _, err := exec.LookPath(filepath.Join(bin, name)); err != nil {
			t.Fatalf("%v; run `make build`, or set K1M_BIN to the directory of the binaries", err)
		}
	}
	c := &cluster{bin: bin, home: t.TempDir()}
	c.k1m(t, "up", "--name", clusterName, "--nodes", "1", "--apiservers", "2")
	t.Cleanup(func() { c.k1m(t, "down", "--name", clusterName) })
	c.find(t)
	tls, err := transport.TLSInfo{
		TrustedCAFile: c.pki("etcd/ca.crt"), CertFile: c.pki("apiserver-etcd-client.crt"), KeyFile: c.pki("apiserver-etcd-client.key"),
	}.ClientConfig()
	must(t, err)
	c.store, err = clientv3.New(clientv3.Config{Endpoints: []string{c.storeURL}, DialTimeout: startTimeout, TLS: tls})
	must(t, err)
	t.Cleanup(func() { _ = c.store.Close() })
	kubeconfig := strings.TrimSpace(string(c.k1m(t, "kubeconfig", "--name", clusterName, "--path")))
	// What the gateway's own user needs.
	apply := exec.Command(filepath.Join(bin, "kubectl"), "--kubeconfig", kubeconfig, "apply", "-f", "../../../deploy/kube-gateway/node-path.yaml")
	if out, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("kubectl apply: %v: %s", err, out)
	}
	config, err := clientcmd.BuildConfigFromFlags("https://"+c.servers[0], kubeconfig)
	must(t, err)
	config.QPS = -1
	c.admin, err = kubernetes.NewForConfig(config)
	must(t, err)
	return c
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

// find finds the API servers and the store.
func (c *cluster) find(t *testing.T) {
	t.Helper()
	for _, component := range c.components(t) {
		if strings.HasPrefix(component.Name, "kube-apiserver") {
			c.servers = append(c.servers, strings.TrimPrefix(component.Address, "https://"))
		}
		if component.Name == "store" || component.Name == "mem_etcd" {
			c.storeURL = component.Address
		}
	}
	if len(c.servers) != 2 || c.storeURL == "" {
		t.Fatalf("the cluster has the API servers %v and the store %q, want two and one", c.servers, c.storeURL)
	}
}

// storePID returns the process of the store.
func (c *cluster) storePID(t *testing.T) int {
	t.Helper()
	for _, component := range c.components(t) {
		if component.Address == c.storeURL {
			return component.PID
		}
	}
	t.Fatalf("no component has the address %s", c.storeURL)
	return 0
}

// pki returns the path of a certificate or key of the cluster.
func (c *cluster) pki(name string) string {
	return filepath.Join(c.home, "clusters", clusterName, "pki", name)
}

// startGateway starts a gateway and waits until it is ready with both API servers. It ends with the test.
func (c *cluster) startGateway(t *testing.T, mode, storeURL, prefix string) *gateway {
	t.Helper()
	g := &gateway{address: freeAddress(t), metrics: freeAddress(t)}
	directory := t.TempDir()
	g.log = filepath.Join(directory, "gateway.log")
	config := filepath.Join(directory, "gateway.yaml")
	must(t, os.WriteFile(config, []byte(c.configuration(g, mode, storeURL, prefix)), 0o600))
	log, err := os.Create(g.log)
	must(t, err)
	process := exec.Command(filepath.Join(c.bin, "kube-gateway"), "--config", config)
	process.Stderr = log
	process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, process.Start())
	t.Cleanup(func() {
		_ = process.Process.Kill()
		_ = process.Wait()
		if text, err := os.ReadFile(g.log); err == nil && t.Failed() {
			t.Logf("log of the gateway:\n%s", text[max(0, len(text)-10000):])
		}
	})
	eventually(t, startTimeout, "the gateway is ready with both API servers", func() bool {
		text := g.page("/metrics")
		return g.page("/readyz") == "ok" && strings.Count(text, "kube_gateway_server_ready{") == 2 &&
			!strings.Contains(text, `kube_gateway_server_ready{server="`+c.servers[0]+`"} 0`) &&
			!strings.Contains(text, `kube_gateway_server_ready{server="`+c.servers[1]+`"} 0`)
	})
	if prefix == "/registry" {
		eventually(t, startTimeout, "the detection permits", func() bool { return g.metric("kube_gateway_node_path_permitted") == 1 })
	}
	return g
}

func (c *cluster) configuration(g *gateway, mode, storeURL, prefix string) string {
	return fmt.Sprintf(`apiVersion: gateway.k8s-1m.dev/v1alpha1
kind: GatewayConfiguration
listen: {address: %q, metricsAddress: %q, certFile: %q, keyFile: %q, clientCaFile: %q}
upstream: {servers: [%q, %q], caFile: %q}
requestHeader: {certFile: %q, keyFile: %q}
nodePath:
  store: {endpoints: [%q], prefix: %q, caFile: %q, certFile: %q, keyFile: %q}
  leases: {mode: %s, comparisons: %d}
`, g.address, g.metrics, c.pki("apiserver.crt"), c.pki("apiserver.key"), c.pki("ca.crt"),
		c.servers[0], c.servers[1], c.pki("ca.crt"), c.pki("front-proxy-client.crt"), c.pki("front-proxy-client.key"),
		storeURL, prefix, c.pki("etcd/ca.crt"), c.pki("apiserver-etcd-client.crt"), c.pki("apiserver-etcd-client.key"), mode, comparisons)
}

// page returns a page of the gateway, or an empty text.
func (g *gateway) page(path string) string {
	response, err := http.Get("http://" + g.metrics + path)
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	var text bytes.Buffer
	_, _ = text.ReadFrom(response.Body)
	return text.String()
}

// metric returns the sum of all samples whose name and labels begin with a text.
func (g *gateway) metric(start string) int {
	sum := 0
	for _, match := range regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(start)+`.* (\d+)$`).FindAllStringSubmatch(g.page("/metrics"), -1) {
		value, _ := strconv.Atoi(match[1])
		sum += value
	}
	return sum
}

// served and forwarded return numbers of renewals.
func (g *gateway) served() int {
	return g.metric(`kube_gateway_node_path_lease_renewals_total{reason="",result="served"}`)
}

func (g *gateway) forwarded(reason string) int {
	return g.metric(`kube_gateway_node_path_lease_renewals_total{reason="` + reason + `",result="forwarded"}`)
}

// compared returns the number of comparisons with a result.
func (g *gateway) compared(result string) int {
	return g.metric(`kube_gateway_node_path_lease_comparisons_total{result="` + result + `"}`)
}

// state returns 0 for off, 1 for shadow, 2 for on.
func (g *gateway) state() int { return g.metric("kube_gateway_node_path_lease_state") }

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
