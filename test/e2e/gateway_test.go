package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
)

const (
	gatewayCluster = "gateway"
	// gatewayGrace is kube-controller-manager's default. On a busy machine, nodes would be NotReady now and then with half of it.
	gatewayGrace = 50 * time.Second
)

// gatewayNodes returns the number of nodes behind the gateways: E2E_GATEWAY_NODES, by default 300.
func gatewayNodes(t *testing.T) int {
	text := os.Getenv("E2E_GATEWAY_NODES")
	if text == "" {
		return 300
	}
	nodes, err := strconv.Atoi(text)
	if err != nil || nodes < 1 {
		t.Fatalf("E2E_GATEWAY_NODES=%q: want a number of nodes", text)
	}
	return nodes
}

// TestGateway checks a cluster with three API servers behind two gateways, and kills, stops and restarts
// its processes. A watch that connects to an API server directly notes each node that becomes NotReady.
func TestGateway(t *testing.T) {
	w := newWorkspace(t)
	t.Cleanup(func() { w.k1m(t, "down", "--name", gatewayCluster) })
	w.succeed(t, "up", "--name", gatewayCluster, "--nodes", fmt.Sprint(gatewayNodes(t)), "--store", storeKind(),
		"--apiservers", "3", "--gateway", "--gateways", "2", "--controller-manager-arg", fmt.Sprintf("node-monitor-grace-period=%s", gatewayGrace))
	lost, stopWatch := watchForLostNodes(t, w)
	lastFault := time.Now()
	steps := []struct {
		name string
		run  func(*testing.T, *workspace)
	}{
		{"clients are configured to use the gateways", clientsUseGateways},
		{"kubectl works through each server", kubectlWorksThroughEachServer},
		{"commands show the gateways", commandsShowGateways},
		{"throttle command reaches a gateway", throttleReachesGateway},
		{"pods run", func(t *testing.T, w *workspace) {
			w.succeed(t, "pods", "create", "--name", gatewayCluster, "--count", "50")
		}},
		{"killed gateway is restarted", killedGatewayIsRestarted},
		{"killed API server is restarted at its address", killedServerKeepsItsAddress},
		{"stopped API server is left", stoppedServerIsLeft},
		{"no node became NotReady", func(t *testing.T, w *workspace) {
			// A node whose heartbeats ended at the last fault is NotReady after this time.
			// kube-controller-manager checks every five seconds.
			time.Sleep(time.Until(lastFault.Add(gatewayGrace + 5*time.Second)))
			if s := w.status(t, gatewayCluster); s.Nodes.Ready != gatewayNodes(t) || len(lost()) > 0 {
				t.Errorf("nodes are %+v, and these were not ready at some time: %q; want all always ready", s.Nodes, lost())
			}
			stopWatch()
		}},
		{"gateway is switched off", gatewayIsSwitchedOff},
	}
	for _, step := range steps {
		if !t.Run(step.name, func(t *testing.T) { step.run(t, w) }) {
			t.Logf("lost nodes: %q", lost())
			return
		}
		if strings.HasPrefix(step.name, "killed") || strings.HasPrefix(step.name, "stopped") {
			lastFault = time.Now()
		}
	}
}

// watchForLostNodes watches the nodes at the first API server, past the gateways. The returned function
// lists the nodes that were not ready at any time so far.
func watchForLostNodes(t *testing.T, w *workspace) (lost func() []string, stop func()) {
	t.Helper()
	client := w.clientAt(t, gatewayCluster, w.status(t, gatewayCluster).component(t, "kube-apiserver").Address)
	var mu sync.Mutex
	var names []string
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	factory := informers.NewSharedInformerFactory(client, 0)
	nodes := factory.Core().V1().Nodes().Informer()
	_, err := nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(_, updated any) {
		node := updated.(*corev1.Node)
		mu.Lock()
		defer mu.Unlock()
		if !bulk.NodeReady(node) && !slices.Contains(names, node.Name) {
			names = append(names, node.Name)
		}
	}})
	must(t, err)
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), nodes.HasSynced) {
		t.Fatal("the watch of the nodes did not start")
	}
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(names)
	}, cancel
}

// clientsUseGateways checks the servers in the kubeconfigs, and that the heartbeats arrive at a gateway.
func clientsUseGateways(t *testing.T, w *workspace) {
	s := w.status(t, gatewayCluster)
	for file, server := range map[string]string{
		"admin": "kube-gateway", "kwok": "kube-gateway", "controller-manager": "kube-gateway", "scheduler": "kube-gateway-1", "super-admin": "kube-apiserver",
	} {
		content, err := os.ReadFile(w.clusterDir(gatewayCluster) + "/kubeconfig/" + file + ".conf")
		must(t, err)
		if want := "server: " + s.component(t, server).Address + "\n"; !strings.Contains(string(content), want) {
			t.Errorf("the kubeconfig %s does not contain %q", file, want)
		}
	}
	// Only kwok, which renews the Leases of the nodes, sends as many updates.
	metrics := w.gatewayMetrics(t, gatewayCluster, "kube-gateway")
	eventually(t, patience, "the gateway of kwok forwards the heartbeats of all nodes", func() error {
		if updates, err := countOnPage(metrics, updatesOnPage); err != nil || updates < gatewayNodes(t) {
			return fmt.Errorf("it has counted %d updates (%v)", updates, err)
		}
		return nil
	})
}

var updatesOnPage = regexp.MustCompile(`(?m)^kube_gateway_requests_total\{code="200",verb="update"\} (\d+)$`)

// gatewayMetrics returns the URL of the metrics of a gateway.
func (w *workspace) gatewayMetrics(t *testing.T, cluster, gateway string) string {
	t.Helper()
	content, err := os.ReadFile(w.clusterDir(cluster) + "/cluster.json")
	must(t, err)
	var config clusterdir.Config
	must(t, json.Unmarshal(content, &config))
	return "http://" + config.Ports.Address(clusterdir.GatewayMetricsPort(gateway)) + "/metrics"
}

// kubectlWorksThroughEachServer checks that the user and its groups are the same through a gateway and at
// an API server.
func kubectlWorksThroughEachServer(t *testing.T, w *workspace) {
	if nodes := w.succeed(t, "kubectl", "--name", gatewayCluster, "get", "nodes", "-o", "name").stdout; strings.Count(nodes, "node/") != gatewayNodes(t) {
		t.Errorf("kubectl get nodes printed %d nodes, want %d", strings.Count(nodes, "node/"), gatewayNodes(t))
	}
	for _, server := range []string{"kube-gateway", "kube-gateway-1", "kube-apiserver", "kube-apiserver-2"} {
		path := strings.TrimSpace(w.succeed(t, "kubeconfig", "--name", gatewayCluster, "--server", server, "--path").stdout)
		whoami := w.succeed(t, "kubectl", "--name", gatewayCluster, "--kubeconfig", path, "auth", "whoami", "-o", "json").stdout
		var review struct {
			Status struct {
				UserInfo struct {
					Username string
					Groups   []string
				}
			}
		}
		must(t, json.Unmarshal([]byte(whoami), &review))
		if user := review.Status.UserInfo; user.Username != "kubernetes-admin" || !slices.Equal(user.Groups, []string{"kubeadm:cluster-admins", "system:authenticated"}) {
			t.Errorf("the user of %s is %+v, want kubernetes-admin of the group kubeadm:cluster-admins", server, user)
		}
	}
	r := w.k1m(t, "kubeconfig", "--name", gatewayCluster, "--server", "nosuch")
	want := "k1m: --server \"nosuch\": this cluster has no such server; choose one of kube-gateway, kube-gateway-1, kube-apiserver, kube-apiserver-1, kube-apiserver-2\n"
	if r.code != 2 || r.stderr != want {
		t.Errorf("kubeconfig of an unknown server: exit code %d, %q, want 2, %q", r.code, r.stderr, want)
	}
}

func commandsShowGateways(t *testing.T, w *workspace) {
	s := w.status(t, gatewayCluster)
	if len(s.Gateways) != 2 || len(s.Gateways[0].Servers) != 3 || s.Gateways[0].ClientConnections == 0 {
		t.Fatalf("the status has the gateways %+v, want two with three API servers each", s.Gateways)
	}
	for _, server := range s.Gateways[1].Servers {
		if !server.Ready {
			t.Errorf("the second gateway considers %s not ready", server.Name)
		}
	}
	if text := w.succeed(t, "status", "--name", gatewayCluster).stdout; !strings.Contains(text, "Gateway:    kube-gateway-1 has ") {
		t.Errorf("status printed no line for the second gateway:\n%s", text)
	}
	if log := w.succeed(t, "logs", "--name", gatewayCluster, "kube-gateway-1").stdout; !strings.Contains(log, "ready=true") {
		t.Errorf("the log of the second gateway reports no API server as ready:\n%s", log)
	}
	if page := w.succeed(t, "top", "--name", gatewayCluster, "--once").stdout; !strings.Contains(page, "kube-gateway: connections by API server") {
		t.Errorf("top printed no connections of the gateways:\n%s", page)
	}
	refused := w.k1m(t, "up", "--name", gatewayCluster, "--gateway=false")
	if refused.code != 1 || !strings.Contains(refused.stderr, "--gateway is true") {
		t.Errorf("up with --gateway=false on a running cluster: exit code %d, %q, want a refusal", refused.code, refused.stderr)
	}
}

// throttleReachesGateway adds a rule to one of the gateways and deletes it.
func throttleReachesGateway(t *testing.T, w *workspace) {
	throttle := func(gateway string, args ...string) string {
		t.Helper()
		args = append([]string{"throttle"}, append(args, "--config", w.clusterDir(gatewayCluster)+"/config/"+gateway+".yaml")...)
		output, err := exec.Command(filepath.Join(w.bin, "kube-gateway"), args...).CombinedOutput()
		if err != nil {
			t.Fatalf("kube-gateway %q: %v\n%s", args, err, output)
		}
		return string(output)
	}
	throttle("kube-gateway-1", "add", "--user-agent", "noisy*", "--qps", "1")
	if rules := throttle("kube-gateway-1", "list"); !strings.Contains(rules, "noisy*") {
		t.Errorf("the gateway has these rules:\n%s\nwant the one that was added", rules)
	}
	if rules := throttle("kube-gateway", "list"); strings.Contains(rules, "noisy*") {
		t.Errorf("the other gateway has these rules:\n%s\nwant none", rules)
	}
	throttle("kube-gateway-1", "delete", "--user-agent", "noisy*")
}

// killedGatewayIsRestarted kills the gateway that kwok, kube-controller-manager and kubectl use.
func killedGatewayIsRestarted(t *testing.T, w *workspace) {
	before := w.killNow(t, gatewayCluster, "kube-gateway")
	path := strings.TrimSpace(w.succeed(t, "kubeconfig", "--name", gatewayCluster, "--server", "kube-gateway-1", "--path").stdout)
	w.succeed(t, "kubectl", "--name", gatewayCluster, "--kubeconfig", path, "get", "node", "node-000000")
	w.awaitRestart(t, gatewayCluster, before)
	if after := w.status(t, gatewayCluster).component(t, "kube-gateway"); after.Address != before.Address {
		t.Errorf("the restarted gateway is at %s, want %s", after.Address, before.Address)
	}
	awaitWorkingClients(t, w)
}

func killedServerKeepsItsAddress(t *testing.T, w *workspace) {
	before := w.killNow(t, gatewayCluster, "kube-apiserver-1")
	awaitWorkingClients(t, w)
	w.awaitRestart(t, gatewayCluster, before)
	if after := w.status(t, gatewayCluster).component(t, before.Name); after.Address != before.Address {
		t.Errorf("the restarted API server is at %s, want %s", after.Address, before.Address)
	}
	awaitServer(t, w, before.Name, true)
}

// stoppedServerIsLeft stops an API server without closing its connections. Gateways must notice that it
// does not answer.
func stoppedServerIsLeft(t *testing.T, w *workspace) {
	server := w.status(t, gatewayCluster).component(t, "kube-apiserver-2")
	must(t, syscall.Kill(server.PID, syscall.SIGSTOP))
	resume := sync.OnceFunc(func() { must(t, syscall.Kill(server.PID, syscall.SIGCONT)) })
	t.Cleanup(resume)
	awaitServer(t, w, server.Name, false)
	awaitWorkingClients(t, w)
	resume()
	awaitServer(t, w, server.Name, true)
}

// awaitServer waits until all gateways consider an API server ready or not ready.
func awaitServer(t *testing.T, w *workspace, name string, ready bool) {
	t.Helper()
	eventually(t, patience, fmt.Sprintf("the gateways consider %s ready: %v", name, ready), func() error {
		gateways := w.status(t, gatewayCluster).Gateways
		for _, gateway := range gateways {
			for _, server := range gateway.Servers {
				if server.Name == name && server.Ready != ready {
					return fmt.Errorf("%s does not", gateway.Name)
				}
			}
		}
		if len(gateways) != 2 {
			return fmt.Errorf("the status has the gateways %+v", gateways)
		}
		return nil
	})
}

// awaitWorkingClients waits until five new clients in a row read and write within requestTimeout each.
func awaitWorkingClients(t *testing.T, w *workspace) {
	t.Helper()
	eventually(t, patience, "new clients read and write", func() error {
		for range 5 {
			if err := readAndWrite(t, w.client(t, gatewayCluster)); err != nil {
				return err
			}
		}
		return nil
	})
}

func readAndWrite(t *testing.T, client kubernetes.Interface) error {
	ctx, cancel := context.WithTimeout(t.Context(), requestTimeout)
	defer cancel()
	if _, err := client.CoreV1().Nodes().Get(ctx, "node-000000", metav1.GetOptions{}); err != nil {
		return err
	}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "written-"}}
	_, err := client.CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(ctx, object, metav1.CreateOptions{})
	return err
}

// gatewayIsSwitchedOff restarts the cluster without gateways. Its clients then use the API servers.
func gatewayIsSwitchedOff(t *testing.T, w *workspace) {
	w.succeed(t, "down", "--name", gatewayCluster, "--keep-data")
	w.succeed(t, "up", "--name", gatewayCluster, "--gateway=false", "--apiservers", "1", "--nodes", "0")
	s := w.status(t, gatewayCluster)
	for _, c := range s.Components {
		if strings.Contains(c.Name, "gateway") {
			t.Errorf("the component %s still runs", c.Name)
		}
	}
	if content := w.succeed(t, "kubeconfig", "--name", gatewayCluster).stdout; !strings.Contains(content, s.component(t, "kube-apiserver").Address) {
		t.Error("the kubeconfig does not refer to the API server")
	}
	if s.Nodes.Total != gatewayNodes(t) {
		t.Errorf("the cluster has %d nodes, want %d", s.Nodes.Total, gatewayNodes(t))
	}
}
