// Package detection tests that kube-gateway notices everything that would see the renewal of a node's Lease, and that
// its certificate for the store is limited to these Leases.
//
//	K1M_BIN  directory of the binaries (default ../../../bin)
package detection

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	clusterName    = "node-path-detection"
	leasePrefix    = "/registry/leases/kube-node-lease/"
	commandTimeout = 3 * time.Minute
	startTimeout   = time.Minute
)

// cluster is a k1m cluster with two API servers, and a gateway in front of them.
type cluster struct {
	bin, home string
	// servers are the host:port of the API servers.
	servers []string
	// gateway is the host:port of the gateway, and metrics that of its pages.
	gateway, metrics string
	// process is the gateway.
	process *exec.Cmd
}

// newCluster starts a cluster and its gateway. Both end with the test.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	bin := os.Getenv("K1M_BIN")
	if bin == "" {
		bin = filepath.Join("..", "..", "..", "bin")
	}
	bin, err := filepath.Abs(bin)
	must(t, err)
	for _, name := range []string{"k1m", "kube-gateway", "mem_etcd", "kube-apiserver", "kubectl"} {
		if _, err := exec.LookPath(filepath.Join(bin, name)); err != nil {
			t.Fatalf("%v; run `make build`, or set K1M_BIN to the directory of the binaries", err)
		}
	}
	c := &cluster{bin: bin, home: t.TempDir(), gateway: freeAddress(t), metrics: freeAddress(t)}
	c.k1m(t, "up", "--name", clusterName, "--nodes", "1", "--apiservers", "2",
		"--store-arg", "client-cert-permission=kube-gateway=readwrite:"+leasePrefix)
	t.Cleanup(func() { c.k1m(t, "down", "--name", clusterName) })
	for _, component := range c.components(t) {
		if strings.HasPrefix(component.Name, "kube-apiserver") {
			c.servers = append(c.servers, strings.TrimPrefix(component.Address, "https://"))
		}
	}
	c.issueStoreCertificate(t)
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

// named returns the component with this name.
func (c *cluster) named(t *testing.T, name string) component {
	t.Helper()
	for _, component := range c.components(t) {
		if component.Name == name {
			return component
		}
	}
	t.Fatalf("the cluster has no %s", name)
	return component{}
}

// dir returns the directory of the cluster.
func (c *cluster) dir() string { return filepath.Join(c.home, "clusters", clusterName) }

// pki returns the path of a certificate or key of the cluster.
func (c *cluster) pki(name string) string { return filepath.Join(c.dir(), "pki", name) }

// file returns the path of a file of the test.
func (c *cluster) file(name string) string { return filepath.Join(c.home, name) }

// issueStoreCertificate writes store.crt and store.key: a client certificate for the store with the common name
// kube-gateway.
func (c *cluster) issueStoreCertificate(t *testing.T) {
	t.Helper()
	ca, err := tls.LoadX509KeyPair(c.pki("etcd/ca.crt"), c.pki("etcd/ca.key"))
	must(t, err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "kube-gateway"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.Leaf, key.Public(), ca.PrivateKey)
	must(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	for name, block := range map[string]*pem.Block{
		"store.crt": {Type: "CERTIFICATE", Bytes: der}, "store.key": {Type: "PRIVATE KEY", Bytes: private},
	} {
		must(t, os.WriteFile(c.file(name), pem.EncodeToMemory(block), 0o600))
	}
}

// writeConfiguration writes the configuration of the gateway with these API servers.
func (c *cluster) writeConfiguration(t *testing.T, servers []string, prefix string) {
	t.Helper()
	config := map[string]any{
		"apiVersion": "gateway.k8s-1m.dev/v1alpha1", "kind": "GatewayConfiguration",
		"listen": map[string]any{
			"address": c.gateway, "metricsAddress": c.metrics, "certFile": c.pki("apiserver.crt"),
			"keyFile": c.pki("apiserver.key"), "clientCaFile": c.pki("ca.crt"),
		},
		"upstream": map[string]any{"servers": servers, "caFile": c.pki("ca.crt"), "probePeriod": "200ms"},
		"requestHeader": map[string]any{
			"certFile": c.pki("front-proxy-client.crt"), "keyFile": c.pki("front-proxy-client.key"),
		},
		"nodePath": map[string]any{
			"store": map[string]any{
				"endpoints": []string{c.store(t)}, "caFile": c.pki("etcd/ca.crt"), "certFile": c.file("store.crt"),
				"keyFile": c.file("store.key"), "prefix": prefix,
			},
			"leases": map[string]any{"mode": "shadow"},
		},
	}
	content, err := json.Marshal(config)
	must(t, err)
	must(t, os.WriteFile(c.file("gateway.yaml"), content, 0o600))
	if c.process != nil {
		must(t, c.process.Process.Signal(syscall.SIGHUP))
	}
}

// store returns the URL of the store.
func (c *cluster) store(t *testing.T) string { return c.named(t, "store").Address }

// startGateway starts a gateway. It ends with the test.
func (c *cluster) startGateway(t *testing.T, prefix string) {
	t.Helper()
	c.writeConfiguration(t, c.servers, prefix)
	log, err := os.Create(c.file("gateway.log"))
	must(t, err)
	process := exec.Command(filepath.Join(c.bin, "kube-gateway"), "--config", c.file("gateway.yaml"))
	process.Stderr = log
	process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, process.Start())
	c.process = process
	t.Cleanup(func() {
		c.stopGateway()
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("log of the gateway:\n%s", text)
		}
	})
}

func (c *cluster) stopGateway() {
	if c.process != nil {
		_ = c.process.Process.Kill()
		_ = c.process.Wait()
		c.process = nil
	}
}

// kubectl runs kubectl as the administrator against the first API server, with this input.
func (c *cluster) kubectl(t *testing.T, stdin string, args ...string) {
	t.Helper()
	args = append([]string{"--kubeconfig", c.kubeconfig(t), "--server", "https://" + c.servers[0]}, args...)
	cmd := exec.Command(filepath.Join(c.bin, "kubectl"), args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// kubeconfig returns the path of the administrator's kubeconfig.
func (c *cluster) kubeconfig(t *testing.T) string {
	t.Helper()
	path := c.file("admin.conf")
	if _, err := os.Stat(path); err != nil {
		must(t, os.WriteFile(path, c.k1m(t, "kubeconfig", "--name", clusterName), 0o600))
	}
	return path
}

// admin returns the configuration of the administrator's client for an API server.
func (c *cluster) admin(t *testing.T, address string) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("https://"+address, c.kubeconfig(t))
	must(t, err)
	config.QPS = -1
	return config
}

// page returns the metrics of the gateway, or an empty text.
func (c *cluster) page() string {
	response, err := http.Get("http://" + c.metrics + "/metrics")
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	var text bytes.Buffer
	_, _ = text.ReadFrom(response.Body)
	return text.String()
}

// freeAddress returns a loopback address with a port that was free.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer listener.Close()
	return listener.Addr().String()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// waitFor waits until a condition on the metrics is true, and returns how long that took.
func (c *cluster) waitFor(t *testing.T, limit time.Duration, what string, condition func(page string) bool) time.Duration {
	t.Helper()
	start := time.Now()
	for !condition(c.page()) {
		if time.Since(start) > limit {
			t.Fatalf("not within %v: %s; the metrics are\n%s", limit, what, c.nodePathMetrics())
		}
		time.Sleep(5 * time.Millisecond)
	}
	return time.Since(start)
}

func (c *cluster) nodePathMetrics() string {
	var lines []string
	for line := range strings.Lines(c.page()) {
		if strings.HasPrefix(line, "kube_gateway_node_path") || strings.HasPrefix(line, "kube_gateway_server_ready") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

func permitted(page string) bool {
	return strings.Contains(page, "kube_gateway_node_path_permitted 1\n")
}

func refused(page string) bool { return strings.Contains(page, "kube_gateway_node_path_permitted 0\n") }

// refusedBy returns whether a rule forbids the node path.
func refusedBy(rule string) func(string) bool {
	line := fmt.Sprintf("kube_gateway_node_path_refused{rule=%q} 1\n", rule)
	return func(page string) bool { return refused(page) && strings.Contains(page, line) }
}
