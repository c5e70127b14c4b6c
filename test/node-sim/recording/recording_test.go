// Package recording compares the requests of node-sim with those of hollow kubelets, which are the code of kubelet with a
// container runtime that starts no containers. Both run beside each other with the same API server, whose audit log
// is counted.
//
//	K1M_BIN              directory of the binaries (default bin in the root of the repository)
//	NODE_REQUESTS_IDLE   time for which the nodes are idle; the test is skipped without it
//	NODE_REQUESTS_NODES  nodes of each kind (default 3)
//	NODE_REQUESTS_OUT    file to which the tables are written (default: they are only printed)
package recording

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

const (
	// timeout bounds the time until nodes are ready, or pods run or are gone.
	timeout = 3 * time.Minute
	// settleTime is the time after which what follows a start or a deletion has been sent.
	settleTime = 15 * time.Second
	// podTime is the time for which pods run.
	podTime    = 20 * time.Second
	podsOfNode = 4
)

// prefixes are the prefixes of the names of nodes by sender.
var prefixes = map[sender]string{kubelet: "hollow", wire: "wire", shared: "shared"}

// rootDirectory matches the line in the log of a hollow kubelet that names its directory.
var rootDirectory = regexp.MustCompile(`Using (/tmp/hollow-kubelet\.[A-Za-z0-9]+) as root dir`)

// recording is a cluster with nodes of each kind.
type recording struct {
	testcluster.Cluster
	client     kubernetes.Interface
	kubeconfig string
	audit      string
	nodes      int
}

func TestRequestsAreThoseOfKubelet(t *testing.T) {
	if os.Getenv("NODE_REQUESTS_IDLE") == "" {
		t.Skip("NODE_REQUESTS_IDLE is not set; run make node-requests, on a machine with no other load")
	}
	r := newRecording(t)
	begin := time.Now()
	r.startKubelets(t)
	r.startNodeSim(t, shared)
	r.startNodeSim(t, wire, "--client-ca-cert", r.PKI("ca.crt"), "--client-ca-key", r.PKI("ca.key"))
	r.awaitReady(t)
	time.Sleep(settleTime)
	started := time.Now()
	time.Sleep(duration(t, "NODE_REQUESTS_IDLE", time.Minute))
	idled := time.Now()
	r.runPods(t)
	ended := time.Now()

	nodes, minutes := float64(r.nodes), idled.Sub(started).Minutes()
	phases := []phase{
		{start, begin, started, "per node", nodes, 0.35},
		{idle, started, idled, "per node and minute", nodes * minutes, 0.15},
		{pods, idled, ended, "per pod", nodes * podsOfNode, 0.35},
	}
	requests, err := readAudit(r.audit)
	must(t, err)
	var tables bytes.Buffer
	for _, phase := range phases {
		for _, difference := range phase.write(&tables, requests) {
			t.Errorf("a difference that is not explained: %s", difference)
		}
	}
	t.Log(tables.String())
	if file := os.Getenv("NODE_REQUESTS_OUT"); file != "" {
		must(t, os.WriteFile(file, tables.Bytes(), 0o600))
	}
}

// newRecording starts a cluster with one API server that writes an audit log. It ends with the test.
func newRecording(t *testing.T) *recording {
	t.Helper()
	directory := t.TempDir()
	r := &recording{
		Cluster: testcluster.New(t, "recording", "k1m", "node-sim", "kubemark", "mem_etcd", "kube-apiserver", "kwok"),
		audit:   filepath.Join(directory, "audit.log"), nodes: 3,
	}
	if text := os.Getenv("NODE_REQUESTS_NODES"); text != "" {
		nodes, err := strconv.Atoi(text)
		must(t, err)
		r.nodes = nodes
	}
	file := filepath.Join(directory, "policy.yaml")
	must(t, os.WriteFile(file, []byte(policy), 0o600))
	r.K1M(t, "up", "--name", r.Name, "--nodes", "1", "--apiserver-arg", "audit-policy-file="+file,
		"--apiserver-arg", "audit-log-path="+r.audit, "--apiserver-arg", "audit-log-maxsize=2000")
	t.Cleanup(func() { r.K1M(t, "down", "--name", r.Name) })
	r.Servers = []string{strings.TrimPrefix(r.Named(t, "kube-apiserver").Address, "https://")}
	r.kubeconfig = r.Kubeconfig(t)
	client, err := kubernetes.NewForConfig(testcluster.Admin(t, r.kubeconfig, r.Servers[0]))
	must(t, err)
	r.client = client
	return r
}

// run starts a program. It ends with the test, and its log is shown if the test fails.
func (r *recording) run(t *testing.T, program string, args ...string) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log")
	file, err := os.Create(log)
	must(t, err)
	defer file.Close()
	process := exec.Command(filepath.Join(r.Bin, program), args...)
	process.Stdout, process.Stderr = file, file
	process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, process.Start())
	t.Cleanup(func() {
		testcluster.Stop(process)
		text, err := os.ReadFile(log)
		must(t, err)
		if match := rootDirectory.FindSubmatch(text); match != nil {
			must(t, os.RemoveAll(string(match[1])))
		}
		if t.Failed() {
			t.Logf("end of the log of %s:\n%s", program, text[max(0, len(text)-4000):])
		}
	})
}

func (r *recording) startKubelets(t *testing.T) {
	t.Helper()
	for number := range r.nodes {
		_, port, err := net.SplitHostPort(testcluster.FreeAddress(t))
		must(t, err)
		r.run(t, "kubemark", "--morph=kubelet", "--name="+nodeName(kubelet, number), "--kubeconfig="+r.kubeconfig,
			"--kubelet-port="+port, "--kubelet-read-only-port=0", "--use-host-image-service=false", "--kube-api-qps=50", "--kube-api-burst=100")
	}
}

func (r *recording) startNodeSim(t *testing.T, mode sender, flags ...string) {
	t.Helper()
	r.run(t, "node-sim", append([]string{
		"--kubeconfig", r.kubeconfig, "--server", r.Servers[0], "--nodes", strconv.Itoa(r.nodes), "--node-name-format", prefixes[mode] + "-%d",
		"--mode", modeName(mode), "--control-address", testcluster.FreeAddress(t),
	}, flags...)...)
}

func nodeName(of sender, number int) string { return fmt.Sprintf("%s-%d", prefixes[of], number) }

// forEachNode calls a function with each node of each kind.
func (r *recording) forEachNode(call func(name string)) {
	for of := range prefixes {
		for number := range r.nodes {
			call(nodeName(of, number))
		}
	}
}

func (r *recording) awaitReady(t *testing.T) {
	t.Helper()
	r.forEachNode(func(name string) {
		testcluster.Eventually(t, timeout, name+" is ready", func() bool {
			node, err := r.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return false
			}
			for _, condition := range node.Status.Conditions {
				if condition.Type == corev1.NodeReady {
					return condition.Status == corev1.ConditionTrue
				}
			}
			return false
		})
	})
}

// runPods runs pods on each node for some time, and deletes them. They have a token, a ConfigMap and a Secret.
func (r *recording) runPods(t *testing.T) {
	t.Helper()
	core := r.client.CoreV1()
	_, err := core.ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}}, metav1.CreateOptions{})
	must(t, err)
	_, err = core.Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "key"}}, metav1.CreateOptions{})
	must(t, err)
	var names []string
	r.forEachNode(func(node string) {
		for number := range podsOfNode {
			pod := podOn(node, number)
			_, err := core.Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
			must(t, err)
			names = append(names, pod.Name)
		}
	})
	for _, name := range names {
		testcluster.Eventually(t, timeout, name+" runs", func() bool {
			pod, err := core.Pods("default").Get(t.Context(), name, metav1.GetOptions{})
			return err == nil && pod.Status.Phase == corev1.PodRunning
		})
	}
	time.Sleep(podTime)
	for _, name := range names {
		must(t, core.Pods("default").Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	testcluster.Eventually(t, timeout, "all pods are gone", func() bool {
		list, err := core.Pods("default").List(t.Context(), metav1.ListOptions{})
		return err == nil && len(list.Items) == 0
	})
	time.Sleep(settleTime)
}

func podOn(node string, number int) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", node, number), Namespace: "default"},
		Spec: corev1.PodSpec{
			NodeName: node,
			Containers: []corev1.Container{{
				Name: "main", Image: "image",
				EnvFrom: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "key"}}}},
			}},
			Volumes: []corev1.Volume{{Name: "settings", VolumeSource: corev1.VolumeSource{
				ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}},
			}}},
		},
	}
}

// duration returns the duration in an environment variable.
func duration(t *testing.T, variable string, without time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return without
	}
	value, err := time.ParseDuration(text)
	must(t, err)
	return value
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
