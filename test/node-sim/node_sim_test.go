// Package nodesim tests node-sim with a real cluster: API servers, kube-controller-manager and kube-scheduler.
//
//	K1M_BIN  directory of the binaries (default ../../bin)
package nodesim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

const (
	// startTimeout bounds the time until nodes are ready, or pods run. A machine without other work needs seconds.
	startTimeout = 5 * time.Minute
	// notReadyTimeout bounds the time until kube-controller-manager notices that a node is silent: 40 s by default.
	notReadyTimeout = 6 * time.Minute
	// renewals is the number of renewals of which one must come after the interval. On a busy machine, some are late.
	renewals       = 8
	leaseNamespace = "kube-node-lease"
)

// simulator is a process of node-sim.
type simulator struct {
	address string
	process *exec.Cmd
}

// cluster is a cluster with its clients.
type cluster struct {
	testcluster.Cluster
	kubeconfig string
	client     kubernetes.Interface
}

// newCluster starts a cluster with one node of kwok. It ends with the test.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{Cluster: testcluster.New(t, "node-sim", "k1m", "node-sim", "mem_etcd", "kube-apiserver", "kwok", "kubectl")}
	c.Up(t, "--nodes", "1")
	c.kubeconfig = c.Kubeconfig(t)
	client, err := kubernetes.NewForConfig(testcluster.Admin(t, c.kubeconfig, c.Servers[0]))
	must(t, err)
	c.client = client
	return c
}

// start starts node-sim for nodes with a prefix. It ends with the test, and its log is shown if the test fails.
func (c *cluster) start(t *testing.T, prefix string, nodes int, flags ...string) *simulator {
	t.Helper()
	s := &simulator{address: testcluster.FreeAddress(t)}
	log := filepath.Join(t.TempDir(), "log")
	file, err := os.Create(log)
	must(t, err)
	defer file.Close()
	args := append([]string{
		"--kubeconfig", c.kubeconfig, "--server", c.Servers[0], "--nodes", strconv.Itoa(nodes),
		"--node-name-format", prefix + "-%03d", "--control-address", s.address, "--log-level", "debug",
	}, flags...)
	s.process = exec.Command(filepath.Join(c.Bin, "node-sim"), args...)
	s.process.Stderr = file
	s.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, s.process.Start())
	t.Cleanup(func() {
		testcluster.Stop(s.process)
		if text, err := os.ReadFile(log); err == nil && t.Failed() {
			t.Logf("log of node-sim:\n%s", text)
		}
	})
	testcluster.Eventually(t, startTimeout, "node-sim is ready", func() bool {
		return testcluster.Page(s.address, "/readyz") == "ok"
	})
	return s
}

// wire returns the flags of the mode in which each node has a connection.
func (c *cluster) wire() []string {
	return []string{"--mode", "wire", "--client-ca-cert", c.PKI("ca.crt"), "--client-ca-key", c.PKI("ca.key")}
}

// fault injects a fault and returns the number of nodes that it concerns.
func (s *simulator) fault(t *testing.T, name, body string) int {
	t.Helper()
	response, err := http.Post("http://"+s.address+"/nodes/"+name, "application/json", strings.NewReader(body))
	must(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	must(t, err)
	if response.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s: %s", name, body, response.Status, text)
	}
	var answer struct{ Nodes int }
	must(t, json.Unmarshal(text, &answer))
	return answer.Nodes
}

// metric returns the value of a metric with its labels; 0 if there is none.
func (s *simulator) metric(t *testing.T, name string) float64 {
	t.Helper()
	for line := range strings.Lines(testcluster.Page(s.address, "/metrics")) {
		if rest, found := strings.CutPrefix(line, name+" "); found {
			value, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			must(t, err)
			return value
		}
	}
	return 0
}

// ready returns the number of nodes with a prefix whose condition Ready is true.
func (c *cluster) ready(t *testing.T, prefix string) int {
	t.Helper()
	nodes, err := c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	count := 0
	for _, node := range nodes.Items {
		for _, condition := range node.Status.Conditions {
			if strings.HasPrefix(node.Name, prefix+"-") && condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
				count++
			}
		}
	}
	return count
}

// awaitReady waits until so many nodes with a prefix are ready.
func (c *cluster) awaitReady(t *testing.T, prefix string, count int, timeout time.Duration) {
	t.Helper()
	testcluster.Eventually(t, timeout, fmt.Sprintf("%d nodes %s-* are ready", count, prefix), func() bool {
		return c.ready(t, prefix) == count
	})
}

// renewed returns the time of the last renewal of a node's Lease.
func (c *cluster) renewed(t *testing.T, node string) time.Time {
	t.Helper()
	lease, err := c.client.CoordinationV1().Leases(leaseNamespace).Get(t.Context(), node, metav1.GetOptions{})
	must(t, err)
	return lease.Spec.RenewTime.Time
}

// deleteNodes deletes the nodes with a prefix.
func (c *cluster) deleteNodes(t *testing.T, prefix string, count int) {
	t.Helper()
	for number := range count {
		must(t, c.client.CoreV1().Nodes().Delete(context.Background(), fmt.Sprintf("%s-%03d", prefix, number), metav1.DeleteOptions{}))
	}
}

func TestNodeSim(t *testing.T) {
	c := newCluster(t)
	t.Run("shared", func(t *testing.T) { testNodes(t, c, "shared") })
	t.Run("wire", func(t *testing.T) { testNodes(t, c, "wire", c.wire()...) })
	t.Run("mixed", func(t *testing.T) { testMixed(t, c) })
	t.Run("adoption", func(t *testing.T) { testAdoption(t, c) })
	t.Run("pods shared", func(t *testing.T) { testPods(t, c, "pods-shared") })
	t.Run("pods wire", func(t *testing.T) { testPods(t, c, "pods-wire", c.wire()...) })
	t.Run("lease conflicts", func(t *testing.T) { testConflicts(t, c) })
	t.Run("faults shared", func(t *testing.T) { testFaults(t, c, "faulty-shared") })
	t.Run("faults wire", func(t *testing.T) { testFaults(t, c, "faulty-wire", c.wire()...) })
}

// testNodes checks that nodes register, renew their Leases in time and do it with kubelet's requests.
func testNodes(t *testing.T, c *cluster, prefix string, flags ...string) {
	const nodes = 20
	s := c.start(t, prefix, nodes, flags...)
	defer c.deleteNodes(t, prefix, nodes)
	c.awaitReady(t, prefix, nodes, startTimeout)
	name := prefix + "-007"
	node, err := c.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	lease, err := c.client.CoordinationV1().Leases(leaseNamespace).Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	if len(lease.OwnerReferences) != 1 || lease.OwnerReferences[0].UID != node.UID || *lease.Spec.HolderIdentity != name {
		t.Errorf("the Lease %v is not that of the node %s", lease, node.UID)
	}
	if _, err := c.client.StorageV1().CSINodes().Get(t.Context(), name, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if intervals := c.intervals(t, name); !slices.ContainsFunc(intervals, isInterval) {
		t.Errorf("the Lease was renewed after %v, want 10 s to 10.4 s", intervals)
	}
	testcluster.Eventually(t, startTimeout, "all Leases are renewed", func() bool {
		return s.metric(t, "node_sim_heartbeats_total") >= nodes
	})
	if reads := s.metric(t, `node_sim_requests_total{code="200",resource="leases",verb="get"}`); reads != 0 {
		t.Errorf("%v Leases were read; a new node creates its Lease, and renews it without a read", reads)
	}
	if s.metric(t, `node_sim_nodes{state="running"}`) != nodes {
		t.Errorf("metrics:\n%s", testcluster.Page(s.address, "/metrics"))
	}
	if len(flags) > 0 {
		checkWire(t, s, nodes)
	}
}

// intervals returns the times between renewals of a node's Lease, up to one that is as expected.
func (c *cluster) intervals(t *testing.T, node string) (intervals []time.Duration) {
	t.Helper()
	for last := c.renewed(t, node); len(intervals) < renewals && !slices.ContainsFunc(intervals, isInterval); {
		next := last
		testcluster.Eventually(t, startTimeout, "the Lease is renewed", func() bool {
			next = c.renewed(t, node)
			return next.After(last)
		})
		intervals, last = append(intervals, next.Sub(last)), next
	}
	return intervals
}

// isInterval returns whether a time is the interval of renewals.
func isInterval(interval time.Duration) bool {
	return interval >= 9900*time.Millisecond && interval <= 11*time.Second
}

// checkWire checks the connections and watches of nodes in mode wire.
func checkWire(t *testing.T, s *simulator, nodes float64) {
	t.Helper()
	if connections := s.metric(t, "node_sim_connections"); connections < nodes {
		t.Errorf("%v connections of %v nodes", connections, nodes)
	}
	for _, resource := range []string{"pods", "services", "csidrivers", "runtimeclasses"} {
		testcluster.Eventually(t, startTimeout, fmt.Sprintf("%v nodes watch %s", nodes, resource), func() bool {
			return s.metric(t, fmt.Sprintf(`node_sim_watches{resource=%q}`, resource)) == nodes
		})
	}
}

// testMixed checks that some nodes have connections and all are ready.
func testMixed(t *testing.T, c *cluster) {
	const nodes, wire = 12, 5
	flags := append(c.wire(), "--mode", "mixed", "--wire-nodes", strconv.Itoa(wire))[2:]
	s := c.start(t, "mixed", nodes, flags...)
	defer c.deleteNodes(t, "mixed", nodes)
	c.awaitReady(t, "mixed", nodes, startTimeout)
	testcluster.Eventually(t, startTimeout, fmt.Sprintf("%d nodes have watches", wire), func() bool {
		return s.metric(t, `node_sim_watches{resource="services"}`) == wire
	})
}

// testAdoption checks that nodes with an annotation are adopted, before and after the start, and keep their capacity and
// the pods that were bound to them before.
func testAdoption(t *testing.T, c *cluster) {
	create := func(name string) {
		t.Helper()
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"example.com/simulated": "yes"}}}
		_, err := c.client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
		must(t, err)
		t.Cleanup(func() { _ = c.client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}) })
	}
	create("adopted-000")
	s := c.start(t, "none", 0, "--manage-annotation", "example.com/simulated=yes", "--node-cpu", "7")
	c.createPod(t, pod("adopted-001", "adopted-001", "runs", 0))
	create("adopted-001")
	c.awaitReady(t, "adopted", 2, startTimeout)
	c.awaitPod(t, "adopted-001", true, startTimeout)
	testRecreation(t, c, create)
	node, err := c.client.CoreV1().Nodes().Get(t.Context(), "adopted-001", metav1.GetOptions{})
	must(t, err)
	if cpu := node.Status.Allocatable.Cpu().String(); cpu != "7" {
		t.Errorf("the node has %s CPU, want 7", cpu)
	}
	must(t, c.client.CoreV1().Nodes().Delete(t.Context(), "adopted-001", metav1.DeleteOptions{}))
	testcluster.Eventually(t, startTimeout, "the deleted node is forgotten", func() bool {
		return s.metric(t, `node_sim_nodes{state="running"}`) == 1
	})
}

// testRecreation checks that the pods of a Node that is deleted and created again go on, and end when they are deleted.
func testRecreation(t *testing.T, c *cluster, create func(name string)) {
	t.Helper()
	const name = "adopted-000"
	pods := c.client.CoreV1().Pods("default")
	c.createPod(t, pod(name, name, "runs", 0))
	c.awaitPod(t, name, true, startTimeout)
	must(t, c.client.CoreV1().Nodes().Delete(t.Context(), name, metav1.DeleteOptions{}))
	create(name)
	c.awaitReady(t, "adopted", 2, startTimeout)
	must(t, pods.Delete(t.Context(), name, metav1.DeleteOptions{}))
	testcluster.Eventually(t, startTimeout, "the pod of the node that was created again is deleted", func() bool {
		_, err := pods.Get(t.Context(), name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// pod returns a pod on a node, with a label that rules select.
func pod(name, node, kind string, init int) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{"kind": kind}},
		Spec: corev1.PodSpec{
			NodeName: node, RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{Name: "main", Image: "image"}},
		},
	}
	for number := range init {
		p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: fmt.Sprintf("init-%d", number), Image: "image"})
	}
	return p
}

const rules = `rules:
- selector: {kind: fails}
  runTime: 1s
  exitCode: 3
- selector: {kind: succeeds}
  runTime: 1s
- selector: {kind: slow}
  readinessDelay: 3s
`

// testPods checks the life of pods: phases, addresses, Events, init containers, failures and deletion.
func testPods(t *testing.T, c *cluster, prefix string, flags ...string) {
	file := filepath.Join(t.TempDir(), "rules.yaml")
	must(t, os.WriteFile(file, []byte(rules), 0o600))
	s := c.start(t, prefix, 2, append(flags, "--rules", file, "--pod-events", "on", "--node-events", "on")...)
	defer c.deleteNodes(t, prefix, 2)
	c.awaitReady(t, prefix, 2, startTimeout)
	c.hasEvent(t, prefix+"-001", "NodeReady")
	pods, node := c.client.CoreV1().Pods("default"), prefix+"-001"
	for kind, init := range map[string]int{"runs": 0, "initializes": 3, "fails": 0, "succeeds": 0, "slow": 0} {
		_, err := pods.Create(t.Context(), pod(prefix+"-"+kind, node, kind, init), metav1.CreateOptions{})
		must(t, err)
	}
	phases := map[string]corev1.PodPhase{
		"runs": corev1.PodRunning, "initializes": corev1.PodRunning, "fails": corev1.PodFailed, "succeeds": corev1.PodSucceeded, "slow": corev1.PodRunning,
	}
	for kind, phase := range phases {
		testcluster.Eventually(t, startTimeout, fmt.Sprintf("pod %s is %s", kind, phase), func() bool {
			p, err := pods.Get(t.Context(), prefix+"-"+kind, metav1.GetOptions{})
			must(t, err)
			return p.Status.Phase == phase && (phase != corev1.PodRunning || isReady(p))
		})
	}
	running, err := pods.Get(t.Context(), prefix+"-initializes", metav1.GetOptions{})
	must(t, err)
	if running.Status.PodIP == "" || len(running.Status.InitContainerStatuses) != 3 || running.Status.InitContainerStatuses[2].State.Terminated == nil {
		t.Errorf("status of a pod with init containers: %+v", running.Status)
	}
	failed, err := pods.Get(t.Context(), prefix+"-fails", metav1.GetOptions{})
	must(t, err)
	if state := failed.Status.ContainerStatuses[0].State.Terminated; state == nil || state.ExitCode != 3 {
		t.Errorf("status of a pod that failed: %+v", failed.Status)
	}
	// Each pod has the token of its service account, and refers to the ConfigMap of the CA.
	if tokens := s.metric(t, `node_sim_requests_total{code="201",resource="serviceaccounts/token",verb="create"}`); tokens != float64(len(phases)) {
		t.Errorf("%v tokens of %d pods were created", tokens, len(phases))
	}
	ownWatches := min(float64(len(flags)), 1)
	if watches := s.metric(t, `node_sim_watches{resource="configmaps"}`); watches != ownWatches {
		t.Errorf("%v watches of ConfigMaps, want %v", watches, ownWatches)
	}
	var events *corev1.EventList
	testcluster.Eventually(t, startTimeout, "there is an Event of a pod that was started", func() bool {
		events, err = c.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + prefix + "-runs,reason=Started"})
		must(t, err)
		return len(events.Items) > 0
	})
	if len(events.Items) != 1 || events.Items[0].Source.Host != node {
		t.Errorf("Events of a pod that was started: %+v", events.Items)
	}
	for kind := range phases {
		must(t, pods.Delete(t.Context(), prefix+"-"+kind, metav1.DeleteOptions{}))
	}
	testcluster.Eventually(t, startTimeout, "the pods are deleted", func() bool {
		list, err := pods.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
		must(t, err)
		return len(list.Items) == 0
	})
	testcluster.Eventually(t, startTimeout, "the watches of ConfigMaps end", func() bool {
		return s.metric(t, `node_sim_watches{resource="configmaps"}`) == 0
	})
}

// hasEvent waits until there is an Event about a node.
func (c *cluster) hasEvent(t *testing.T, node, reason string) {
	t.Helper()
	testcluster.Eventually(t, startTimeout, node+" has the Event "+reason, func() bool {
		selector := "involvedObject.kind=Node,involvedObject.name=" + node + ",reason=" + reason
		list, err := c.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: selector})
		must(t, err)
		return len(list.Items) == 1
	})
}

// createPod creates a pod, and deletes it at the end of the test if it still exists.
func (c *cluster) createPod(t *testing.T, p *corev1.Pod) {
	t.Helper()
	pods := c.client.CoreV1().Pods(p.Namespace)
	_, err := pods.Create(t.Context(), p, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		now := int64(0)
		_ = pods.Delete(context.Background(), p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	})
}

// awaitPod waits until a pod runs and is ready, or is not.
func (c *cluster) awaitPod(t *testing.T, name string, ready bool, timeout time.Duration) {
	t.Helper()
	testcluster.Eventually(t, timeout, fmt.Sprintf("pod %s runs, ready: %v", name, ready), func() bool {
		p, err := c.client.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
		must(t, err)
		return p.Status.Phase == corev1.PodRunning && isReady(p) == ready
	})
}

func isReady(p *corev1.Pod) bool {
	for _, condition := range p.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// testConflicts checks that a Lease that somebody else changed or deleted is renewed again.
func testConflicts(t *testing.T, c *cluster) {
	s := c.start(t, "conflict", 2, "--lease-interval", "2s")
	defer c.deleteNodes(t, "conflict", 2)
	leases := c.client.CoordinationV1().Leases(leaseNamespace)
	c.awaitReady(t, "conflict", 2, startTimeout)
	var changed *coordinationv1.Lease
	testcluster.Eventually(t, startTimeout, "the Lease is changed between two renewals", func() bool {
		var err error
		changed, err = leases.Get(t.Context(), "conflict-000", metav1.GetOptions{})
		must(t, err)
		changed.Labels = map[string]string{"changed": "yes"}
		changed, err = leases.Update(t.Context(), changed, metav1.UpdateOptions{})
		if !apierrors.IsConflict(err) {
			must(t, err)
		}
		return err == nil
	})
	must(t, leases.Delete(t.Context(), "conflict-001", metav1.DeleteOptions{}))
	testcluster.Eventually(t, startTimeout, "the changed Lease is renewed", func() bool {
		return c.renewed(t, "conflict-000").After(changed.Spec.RenewTime.Time)
	})
	renewed, err := leases.Get(t.Context(), "conflict-000", metav1.GetOptions{})
	must(t, err)
	if renewed.Labels["changed"] != "yes" || len(renewed.ManagedFields) < 2 {
		t.Errorf("the renewal lost what somebody else has set: %+v", renewed.ObjectMeta)
	}
	testcluster.Eventually(t, startTimeout, "the deleted Lease is created again", func() bool {
		_, err := leases.Get(t.Context(), "conflict-001", metav1.GetOptions{})
		return err == nil
	})
	if s.metric(t, `node_sim_heartbeat_failures_total{code="409"}`) < 1 {
		t.Error("no conflict was counted")
	}
}

// testFaults checks that kube-controller-manager sees nodes that stop and start, and that their pods are ready again.
func testFaults(t *testing.T, c *cluster, prefix string, flags ...string) {
	const nodes = 6
	s := c.start(t, prefix, nodes, append(flags, "--zones", "2")...)
	defer c.deleteNodes(t, prefix, nodes)
	c.awaitReady(t, prefix, nodes, startTimeout)
	running, stopping := prefix+"-000", prefix+"-001"
	for _, node := range []string{running, stopping} {
		c.createPod(t, pod(node, node, "runs", 0))
		c.awaitPod(t, node, true, startTimeout)
	}
	if count := s.fault(t, "stop", `{"zone": "zone-1"}`); count != nodes/2 {
		t.Fatalf("%d nodes were stopped, want %d", count, nodes/2)
	}
	stopped := time.Now()
	if len(flags) > 0 {
		testcluster.Eventually(t, startTimeout, "the connections are closed", func() bool {
			return s.metric(t, `node_sim_watches{resource="services"}`) == nodes/2
		})
	}
	c.awaitReady(t, prefix, nodes/2, notReadyTimeout)
	// A request that was under way may have arrived later, but its time is older.
	if c.renewed(t, stopping).After(stopped) || !c.renewed(t, running).After(stopped) {
		t.Error("a stopped node renewed its Lease, or another one did not")
	}
	c.awaitPod(t, stopping, false, startTimeout)
	if started := s.fault(t, "start", `{"all": true}`); started != nodes/2 {
		t.Errorf("%d nodes were started, want the %d that were stopped", started, nodes/2)
	}
	c.awaitReady(t, prefix, nodes, startTimeout)
	c.awaitPod(t, stopping, true, startTimeout)
	c.awaitPod(t, running, true, startTimeout)
	response, err := http.Post("http://"+s.address+"/nodes/stop", "application/json", bytes.NewReader([]byte("{}")))
	must(t, err)
	defer response.Body.Close()
	if response.StatusCode != http.StatusBadRequest {
		t.Errorf("a fault without a selection: %s", response.Status)
	}
	s.rejectPage(t)
}

// rejectPage checks that a web page cannot inject a fault.
func (s *simulator) rejectPage(t *testing.T) {
	t.Helper()
	post, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.address+"/nodes/start", strings.NewReader(`{"all": true}`))
	must(t, err)
	post.Header.Set("Origin", "http://example.com")
	response, err := http.DefaultClient.Do(post)
	must(t, err)
	defer response.Body.Close()
	if response.StatusCode != http.StatusForbidden {
		t.Errorf("a fault from a web page: %s", response.Status)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
