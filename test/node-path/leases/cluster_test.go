// Package leases tests how kube-gateway serves renewals of node Leases from the store: in front of real API servers, with
// every stored value and every answer compared with those of kube-apiserver.
//
//	K1M_BIN             directory of the binaries (default ../../../bin)
//	NODE_PATH_RENEWALS  number of random renewals (default 1,000)
//	NODE_PATH_SEED      their seed, or "random" (default 1)
package leases

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/client-go/kubernetes"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

const (
	// startTimeout bounds what a machine without other work does within seconds.
	startTimeout = 3 * time.Minute
	pollInterval = 100 * time.Millisecond
	// comparisons is the number of comparisons after which a gateway of this test serves.
	comparisons = 50
)

// cluster is a k1m cluster with two API servers.
type cluster struct {
	testcluster.Cluster
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
	c := &cluster{Cluster: testcluster.New(t, "node-path", "k1m", "kube-gateway", "mem_etcd", "kube-apiserver", "kwok", "kubectl")}
	c.Up(t, "--nodes", "1")
	c.storeURL = c.Named(t, "store").Address
	c.store = c.StoreClient(t)
	kubeconfig := c.Kubeconfig(t)
	// What the gateway's own user needs.
	apply := exec.Command(filepath.Join(c.Bin, "kubectl"), "--kubeconfig", kubeconfig, "apply", "-f", "../../../deploy/kube-gateway/node-path.yaml")
	if out, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("kubectl apply: %v: %s", err, out)
	}
	var err error
	c.admin, err = kubernetes.NewForConfig(testcluster.Admin(t, kubeconfig, c.Servers[0]))
	must(t, err)
	return c
}

// startGateway starts a gateway and waits until it is ready with all API servers. It ends with the test.
func (c *cluster) startGateway(t *testing.T, mode, storeURL, prefix string) *gateway {
	t.Helper()
	g := &gateway{address: testcluster.FreeAddress(t), metrics: testcluster.FreeAddress(t)}
	directory := t.TempDir()
	g.log = filepath.Join(directory, "gateway.log")
	config := filepath.Join(directory, "gateway.yaml")
	must(t, os.WriteFile(config, []byte(c.configuration(g, mode, storeURL, prefix)), 0o600))
	testcluster.StartGateway(t, c.Bin, config, g.log)
	testcluster.Eventually(t, startTimeout, "the gateway is ready with all API servers", func() bool {
		return g.page("/readyz") == "ok" && g.metric("kube_gateway_server_ready{") == len(c.Servers)
	})
	if prefix == "/registry" {
		testcluster.Eventually(t, startTimeout, "the detection permits", func() bool { return g.metric("kube_gateway_node_path_permitted") == 1 })
	}
	return g
}

func (c *cluster) configuration(g *gateway, mode, storeURL, prefix string) string {
	return fmt.Sprintf(`apiVersion: gateway.k8s-1m.dev/v1alpha1
kind: GatewayConfiguration
listen: {address: %q, metricsAddress: %q, certFile: %q, keyFile: %q, clientCaFile: %q}
upstream: {servers: [%s], caFile: %q}
requestHeader: {certFile: %q, keyFile: %q}
nodePath:
  store: {endpoints: [%q], prefix: %q, caFile: %q, certFile: %q, keyFile: %q}
  leases: {mode: %s, comparisons: %d}
`, g.address, g.metrics, c.PKI("apiserver.crt"), c.PKI("apiserver.key"), c.PKI("ca.crt"),
		strings.Join(c.Servers, ", "), c.PKI("ca.crt"), c.PKI("front-proxy-client.crt"), c.PKI("front-proxy-client.key"),
		storeURL, prefix, c.PKI("etcd/ca.crt"), c.PKI("apiserver-etcd-client.crt"), c.PKI("apiserver-etcd-client.key"), mode, comparisons)
}

// page returns a page of the gateway, or an empty text.
func (g *gateway) page(path string) string { return testcluster.Page(g.metrics, path) }

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

// interruptions returns how many renewals were forwarded because the gateway was not permitted to serve, or the store did not
// answer in time.
func (g *gateway) interruptions() int {
	sum := 0
	for _, reason := range []string{"not_permitted", "store_down", "store_no_answer", "busy"} {
		sum += g.forwarded(reason)
	}
	return sum
}

// remarks are what would fail a test.
type remarks []string

func (r *remarks) add(format string, values ...any) { *r = append(*r, fmt.Sprintf(format, values...)) }

// uninterrupted calls a test with the suffix of the names of its nodes. On a busy machine the gateway does not serve now and then. If that
// happened meanwhile, what is wrong does not count, and the test is repeated with other nodes.
func (g *gateway) uninterrupted(t *testing.T, attempt func(r *remarks, suffix string)) {
	t.Helper()
	deadline := time.Now().Add(startTimeout)
	for number := 0; ; number++ {
		var r remarks
		suffix, before := "", g.interruptions()
		if number > 0 {
			suffix = fmt.Sprintf("-%d", number)
		}
		attempt(&r, suffix)
		if len(r) == 0 {
			return
		}
		if g.interruptions() == before || time.Now().After(deadline) {
			t.Fatal(strings.Join(r, "\n"))
		}
		t.Logf("renewals were not served, so this is repeated: %q", r)
		testcluster.Eventually(t, startTimeout, "the detection permits", func() bool { return g.metric("kube_gateway_node_path_permitted") == 1 })
	}
}

// compared returns the number of comparisons with a result.
func (g *gateway) compared(result string) int {
	return g.metric(`kube_gateway_node_path_lease_comparisons_total{result="` + result + `"}`)
}

// state returns 0 for off, 1 for shadow, 2 for on.
func (g *gateway) state() int { return g.metric("kube_gateway_node_path_lease_state") }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
