// Package watches tests how kube-gateway serves watches and lists of kubelets from its watch cache: in front of real API
// servers, with all answers and events compared with those of kube-apiserver and with the history of the store.
//
//	K1M_BIN                 directory of the binaries (default ../../../bin)
//	NODE_PATH_CHANGES       number of random changes in each part (default 300)
//	NODE_PATH_REQUESTS      number of random requests whose permission is compared (default 2,000)
//	NODE_PATH_KUBELETS      number of kubelets whose memory is measured (default 200)
//	NODE_PATH_LEASES        number of Leases whose memory is measured (default 10,000)
//	NODE_PATH_SEED          seed of the random changes and requests, or "random" (default 1)
package watches

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/client-go/kubernetes"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

const (
	// startTimeout bounds what a machine without other work does within a second or two.
	startTimeout = 2 * time.Minute
	// pollInterval is the time between two looks at a condition.
	pollInterval = 100 * time.Millisecond
	// settleTimeout bounds the time in which all watches see the last change, also after a kill.
	settleTimeout = 5 * time.Minute
	protobuf      = "application/vnd.kubernetes.protobuf"
	// leaseKeys is what the keys of all Leases begin with.
	leaseKeys = "/registry/leases/"
	// memEtcd and etcd are the stores.
	memEtcd, etcd = "mem_etcd", "etcd"
	// storeName is the common name of the gateway's certificate for the store, and limitedStoreName that of one which may
	// not read all Leases.
	storeName, limitedStoreName = "kube-gateway", "limited"
	// cacheWait is less than the 10 s for which a gateway waits until its caches serve.
	cacheWait = 9 * time.Second
)

// cluster is a k1m cluster with two API servers.
type cluster struct {
	testcluster.Cluster
	store *clientv3.Client
	admin kubernetes.Interface
}

// gateway is a process in front of the API servers, which can be started again.
type gateway struct {
	address, metrics, log, config string
	process                       *exec.Cmd
	// caches is the number of resources that are served.
	caches int
	// owner is the test with which the process ends.
	owner *testing.T
}

// newCluster starts a cluster with a store, which ends with the test.
func newCluster(t *testing.T, store string) *cluster {
	t.Helper()
	c := &cluster{Cluster: testcluster.New(t, "watches", "k1m", "kube-gateway", store, "kube-apiserver", "kwok", "kubectl")}
	flags := []string{"--nodes", "1", "--store", store}
	if store == memEtcd {
		// The gateway may read all Leases, and another client only those that it may write. etcd would need users and roles.
		const nodeLeases = leaseKeys + "kube-node-lease/"
		flags = append(flags, "--store-arg", fmt.Sprintf("client-cert-permission=%[1]s=readwrite:%[2]s,%[1]s=read:%[3]s,%[4]s=readwrite:%[2]s",
			storeName, nodeLeases, leaseKeys, limitedStoreName))
	}
	c.Up(t, flags...)
	c.store = c.StoreClient(t)
	kubeconfig := c.Kubeconfig(t)
	const manifests = "../../../deploy/kube-gateway/"
	apply := exec.Command(filepath.Join(c.Bin, "kubectl"), "--kubeconfig", kubeconfig, "apply",
		"-f", manifests+"node-path.yaml", "-f", manifests+"watches.yaml", "-f", manifests+"references.yaml")
	if out, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("kubectl apply: %v: %s", err, out)
	}
	var err error
	c.admin, err = kubernetes.NewForConfig(testcluster.Admin(t, kubeconfig, c.Servers[0]))
	must(t, err)
	return c
}

// startGateway starts a gateway that serves all watches, and waits until all its caches are filled. It ends with the test.
func (c *cluster) startGateway(t *testing.T) *gateway {
	t.Helper()
	return c.startGatewayWith(t, "references: true", 10)
}

// startGatewayWith starts a gateway with a further field of nodePath.watches.
func (c *cluster) startGatewayWith(t *testing.T, field string, caches int) *gateway {
	t.Helper()
	return c.startGatewayAs(t, storeName, field, caches)
}

// startGatewayAs starts a gateway with a name in its certificate for the store.
func (c *cluster) startGatewayAs(t *testing.T, name, field string, caches int) *gateway {
	t.Helper()
	directory := t.TempDir()
	g := &gateway{
		owner: t, caches: caches, address: testcluster.FreeAddress(t), metrics: testcluster.FreeAddress(t),
		log: filepath.Join(directory, "gateway.log"), config: filepath.Join(directory, "gateway.yaml"),
	}
	certificate, key := c.StoreCertificate(t, name)
	// No connection is moved to the other API server because of its load: its watches would end.
	must(t, os.WriteFile(g.config, fmt.Appendf(nil, `apiVersion: gateway.k8s-1m.dev/v1alpha1
kind: GatewayConfiguration
listen: {address: %q, metricsAddress: %q, certFile: %q, keyFile: %q, clientCaFile: %q}
upstream: {servers: [%q, %q], caFile: %q}
requestHeader: {certFile: %q, keyFile: %q}
balance: {imbalance: 1000}
nodePath:
  store: {endpoints: [%q], caFile: %q, certFile: %q, keyFile: %q}
  leases: {mode: shadow, watch: on}
  watches: {mode: on, %s}
`, g.address, g.metrics, c.PKI("apiserver.crt"), c.PKI("apiserver.key"), c.PKI("ca.crt"),
		c.Servers[0], c.Servers[1], c.PKI("ca.crt"), c.PKI("front-proxy-client.crt"), c.PKI("front-proxy-client.key"),
		c.Named(t, "store").Address, c.PKI("etcd/ca.crt"), certificate, key, field), 0o600))
	c.restart(t, g)
	return g
}

// restart starts the process of a gateway.
func (c *cluster) restart(t *testing.T, g *gateway) {
	t.Helper()
	g.process = testcluster.StartGateway(g.owner, c.Bin, g.config, g.log)
	// A load balancer must not choose a gateway that accepts no clients yet.
	isReady := func() bool { return testcluster.Page(g.metrics, "/readyz") == "ok" }
	started := time.Now()
	testcluster.Eventually(t, startTimeout, "all caches serve", func() bool {
		ready := isReady()
		serve := g.serve()
		if ready && !serve && time.Since(started) < cacheWait {
			t.Errorf("the gateway is ready after %v, before its caches serve", time.Since(started))
		}
		return serve
	})
	testcluster.Eventually(t, startTimeout, "the gateway is ready", isReady)
}

// metric returns the sum of all samples whose name and labels begin with a text.
func (g *gateway) metric(start string) int {
	sum := 0
	text := testcluster.Page(g.metrics, "/metrics")
	for _, match := range regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(start)+`.* (\d+)$`).FindAllStringSubmatch(text, -1) {
		value, _ := strconv.Atoi(match[1])
		sum += value
	}
	return sum
}

// serve returns whether all caches serve.
func (g *gateway) serve() bool { return g.metric("kube_gateway_node_path_cache_serving") == g.caches }

// interruptions returns how often a cache has stopped serving since the gateway was started, and how many requests were
// forwarded because of that.
func (g *gateway) interruptions(t *testing.T) int {
	t.Helper()
	log, err := os.ReadFile(g.log)
	must(t, err)
	const forwarded = "kube_gateway_node_path_reads_total{reason="
	return len(regexp.MustCompile(`cache of the node path.*serves=false`).FindAll(log, -1)) +
		g.metric(forwarded+`"not_permitted"`) + g.metric(forwarded+`"not_serving"`)
}

// uninterrupted calls a comparison, which returns what is wrong, or an empty text. On a busy machine caches stop serving now and
// then: watches end, and requests are forwarded. If that happened meanwhile, what is wrong does not count, and the
// comparison is repeated.
func (g *gateway) uninterrupted(t *testing.T, compare func() string) {
	t.Helper()
	for deadline := time.Now().Add(settleTimeout); ; {
		before := g.interruptions(t)
		wrong := compare()
		if wrong == "" {
			return
		}
		if g.interruptions(t) == before || time.Now().After(deadline) {
			t.Fatal(wrong)
		}
		t.Logf("caches stopped serving, so this is repeated: %s", wrong)
		testcluster.Eventually(t, settleTimeout, "all caches serve", g.serve)
	}
}

// served returns the number of requests for a resource that were served.
func (g *gateway) served(resource, verb string) int {
	return g.metric(fmt.Sprintf(`kube_gateway_node_path_reads_total{reason="",resource=%q,result="served",verb=%q}`, resource, verb))
}

// continued returns the number of requests for a resource that an API server began and the gateway goes on with.
func (g *gateway) continued(resource string) int {
	return g.metric(fmt.Sprintf(`kube_gateway_node_path_reads_total{reason="",resource=%q,result="continued"`, resource))
}

// client returns a client with the certificate of a user and its own connection.
func (c *cluster) client(t *testing.T, user string, groups ...string) *http.Client {
	t.Helper()
	transport := &http.Transport{
		// The servers' certificates are not what is tested.
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{c.ClientCertificate(t, user, groups...)}},
		ForceAttemptHTTP2: true,
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// kubelet returns a client with the certificate of a node.
func (c *cluster) kubelet(t *testing.T, node string) *http.Client {
	t.Helper()
	return c.client(t, "system:node:"+node, "system:nodes")
}

// accepts are the Accept headers of client-go: that of kubelets, and that of components which configure only a
// content type.
var accepts = []string{protobuf + ",application/json", protobuf + ", */*"}

// get sends what a kubelet or kube-proxy sends.
func get(ctx context.Context, client *http.Client, address, path string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+path, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", accepts[rand.IntN(len(accepts))])
	request.Header.Set("User-Agent", "kubelet/v1.37.1 (linux/amd64) kubernetes/abc")
	return client.Do(request)
}

// number returns the value of an environment variable.
func number(t *testing.T, name string, value int) int {
	t.Helper()
	if text := os.Getenv(name); text != "" {
		var err error
		value, err = strconv.Atoi(text)
		must(t, err)
	}
	return value
}

// random returns the source of random numbers of this run.
func random(t *testing.T) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(testcluster.Seed(t, "NODE_PATH_SEED"), 0))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
