// Package detection tests that kube-gateway notices everything that would see the renewal of a node's Lease, and that
// its certificate for the store is limited to these Leases.
//
//	K1M_BIN  directory of the binaries (default ../../../bin)
package detection

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

const (
	leasePrefix = "/registry/leases/kube-node-lease/"
	// startTimeout bounds what a machine without other work does within seconds.
	startTimeout = 5 * time.Minute
)

// cluster is a k1m cluster with two API servers, and a gateway in front of them.
type cluster struct {
	testcluster.Cluster
	// gateway is the host:port of the gateway, and metrics that of its pages.
	gateway, metrics string
	// process is the gateway.
	process *exec.Cmd
	// storeCertificate and storeKey are the paths of the gateway's certificate for the store.
	storeCertificate, storeKey string
	// kubeconfig is the path of the administrator's kubeconfig.
	kubeconfig string
}

// newCluster starts a cluster. It ends with the test.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{Cluster: testcluster.New(t, "node-path-detection", "k1m", "kube-gateway", "mem_etcd", "kube-apiserver", "kubectl")}
	c.Up(t, "--nodes", "1", "--store-arg", "client-cert-permission=kube-gateway=readwrite:"+leasePrefix)
	c.kubeconfig = c.Kubeconfig(t)
	c.gateway, c.metrics = testcluster.FreeAddress(t), testcluster.FreeAddress(t)
	c.storeCertificate, c.storeKey = c.StoreCertificate(t, "kube-gateway")
	return c
}

// file returns the path of a file of the test.
func (c *cluster) file(name string) string { return filepath.Join(c.Home, name) }

// writeConfiguration writes the configuration of the gateway with these API servers.
func (c *cluster) writeConfiguration(t *testing.T, servers []string, prefix string) {
	t.Helper()
	config := map[string]any{
		"apiVersion": "gateway.k8s-1m.dev/v1alpha1", "kind": "GatewayConfiguration",
		"listen": map[string]any{
			"address": c.gateway, "metricsAddress": c.metrics, "certFile": c.PKI("apiserver.crt"),
			"keyFile": c.PKI("apiserver.key"), "clientCaFile": c.PKI("ca.crt"),
		},
		"upstream": map[string]any{"servers": servers, "caFile": c.PKI("ca.crt"), "probePeriod": "200ms"},
		"requestHeader": map[string]any{
			"certFile": c.PKI("front-proxy-client.crt"), "keyFile": c.PKI("front-proxy-client.key"),
		},
		"nodePath": map[string]any{
			"store": map[string]any{
				"endpoints": []string{c.Named(t, "store").Address}, "caFile": c.PKI("etcd/ca.crt"), "certFile": c.storeCertificate,
				"keyFile": c.storeKey, "prefix": prefix,
			},
			"leases": map[string]any{"mode": "shadow"}, "watches": map[string]any{"mode": "on"},
		},
	}
	content, err := json.Marshal(config)
	must(t, err)
	must(t, os.WriteFile(c.file("gateway.yaml"), content, 0o600))
	if c.process != nil {
		must(t, c.process.Process.Signal(syscall.SIGHUP))
	}
}

// startGateway starts a gateway. It ends with the test.
func (c *cluster) startGateway(t *testing.T, prefix string) {
	t.Helper()
	c.writeConfiguration(t, c.Servers, prefix)
	c.process = testcluster.StartGateway(t, c.Bin, c.file("gateway.yaml"), c.file("gateway.log"))
}

func (c *cluster) stopGateway() {
	testcluster.Stop(c.process)
	c.process = nil
}

// kubectl runs kubectl as the administrator against the first API server, with this input.
func (c *cluster) kubectl(t *testing.T, stdin string, args ...string) {
	t.Helper()
	args = append([]string{"--kubeconfig", c.kubeconfig, "--server", "https://" + c.Servers[0]}, args...)
	cmd := exec.Command(filepath.Join(c.Bin, "kubectl"), args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// admin returns the configuration of the administrator's client for an API server.
func (c *cluster) admin(t *testing.T, address string) *rest.Config {
	t.Helper()
	return testcluster.Admin(t, c.kubeconfig, address)
}

// page returns the metrics of the gateway, or an empty text.
func (c *cluster) page() string { return testcluster.Page(c.metrics, "/metrics") }

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

// readsPermitted returns whether watches and lists of kubelets may be served.
func readsPermitted(page string) bool {
	return strings.Contains(page, "kube_gateway_node_path_reads_permitted 1\n")
}

// leaseReadsPermitted returns whether watches and lists of Leases may be served from the store.
func leaseReadsPermitted(page string) bool {
	return strings.Contains(page, "kube_gateway_node_path_lease_reads_permitted 1\n")
}

// refusedBy returns whether a rule forbids the node path.
func refusedBy(rule string) func(string) bool {
	line := fmt.Sprintf("kube_gateway_node_path_refused{rule=%q} 1\n", rule)
	return func(page string) bool { return refused(page) && strings.Contains(page, line) }
}
