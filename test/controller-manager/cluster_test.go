// Package controllermanager tests warm-controller-manager with a real cluster, beside upstream's kube-controller-manager.
//
//	K1M_BIN  directory of the binaries (default ../../bin)
package controllermanager

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

const (
	warm = "warm-controller-manager"
	cold = "kube-controller-manager"
	// patience bounds the wait for anything. A machine without other work needs seconds.
	patience = 5 * time.Minute
	// leaseName is the name of the lease of all controller managers, in kube-system.
	leaseName = "kube-controller-manager"
)

// auditPolicy records all writes.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  verbs: [create, update, patch, delete, deletecollection]
- level: None
`

// cluster is a cluster without a controller manager. The test starts them, each under another name: the name of a
// program is in the user agent of its requests.
type cluster struct {
	testcluster.Cluster
	client   kubernetes.Interface
	audit    string // file with the audit log of the API servers
	programs string // directory of the links to the programs
	started  int
}

// newCluster starts a cluster. It ends with the test.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{Cluster: testcluster.New(t, "standby", "k1m", "mem_etcd", "kube-apiserver", "kwok", warm, cold)}
	files := t.TempDir()
	c.audit, c.programs = filepath.Join(files, "audit.log"), files
	policy := filepath.Join(files, "policy.yaml")
	must(t, os.WriteFile(policy, []byte(auditPolicy), 0o600))
	c.Up(t, "--nodes", "2", "--without", cold,
		"--apiserver-arg", "audit-policy-file="+policy, "--apiserver-arg", "audit-log-path="+c.audit, "--apiserver-arg", "audit-log-mode=blocking")
	client, err := kubernetes.NewForConfig(testcluster.Admin(t, c.Kubeconfig(t), c.Servers[0]))
	must(t, err)
	c.client = client
	return c
}

// manager is a process of a controller manager.
type manager struct {
	name, log string
	address   string
	process   *exec.Cmd
	exited    chan struct{}
}

// start starts a controller manager. It ends with the test, and its log is shown if the test fails.
func (c *cluster) start(t *testing.T, program string) *manager {
	t.Helper()
	c.started++
	m := &manager{name: fmt.Sprintf("manager-%d", c.started), exited: make(chan struct{})}
	m.log = filepath.Join(c.programs, m.name+".log")
	port := testcluster.FreePort(t)
	m.address = fmt.Sprintf("127.0.0.1:%d", port)
	link := filepath.Join(c.programs, m.name)
	must(t, os.Symlink(filepath.Join(c.Bin, program), link))
	log, err := os.Create(m.log)
	must(t, err)
	defer log.Close()
	m.process = exec.Command(link, append(c.flags(), fmt.Sprintf("--secure-port=%d", port))...)
	m.process.Stdout, m.process.Stderr = log, log
	m.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, m.process.Start())
	go func() {
		_ = m.process.Wait()
		close(m.exited)
	}()
	t.Cleanup(func() {
		_ = m.process.Process.Kill()
		<-m.exited
		if text, err := os.ReadFile(m.log); err == nil && t.Failed() {
			t.Logf("end of the log of %s (%s):\n%s", m.name, program, text[max(0, len(text)-4000):])
		}
	})
	return m
}

// flags returns the flags of all controller managers. The lease is as in k1m's clusters.
func (c *cluster) flags() []string {
	kubeconfig := filepath.Join(c.Dir(), "kubeconfig", "controller-manager.conf")
	return []string{
		"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
		"--root-ca-file=" + c.PKI("ca.crt"), "--service-account-private-key-file=" + c.PKI("sa.key"), "--use-service-account-credentials=true",
		"--tls-cert-file=" + c.PKI("kube-controller-manager.crt"), "--tls-private-key-file=" + c.PKI("kube-controller-manager.key"),
		"--authorization-always-allow-paths=/healthz,/metrics,/configz,/flagz,/statusz", "--bind-address=127.0.0.1",
		"--leader-elect-lease-duration=10s", "--leader-elect-renew-deadline=7s", "--leader-elect-retry-period=500ms",
		"--kube-api-qps=1000", "--kube-api-burst=2000", "--v=2",
	}
}

// page returns a page of a controller manager, or an empty text.
func (m *manager) page(path string) string {
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	response, err := client.Get("https://" + m.address + path)
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		return ""
	}
	return string(text)
}

// metric returns the value of a metric without labels, or with the given ones; empty if the process does not have it.
func (m *manager) metric(name string) string {
	for line := range strings.Lines(m.page("/metrics")) {
		if value, found := strings.CutPrefix(line, name+" "); found {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// leads reports whether the process holds the lease, as it sees it.
func (m *manager) leads() bool {
	return m.metric(`leader_election_master_status{name="`+leaseName+`"}`) == "1"
}

// isWarm reports whether all informers of a warm standby have synced.
func (m *manager) isWarm() bool {
	running := m.metric("warm_controller_manager_informers")
	return running != "" && running != "0" && running == m.metric("warm_controller_manager_informers_synced")
}

// signal sends a signal to the process.
func (m *manager) signal(t *testing.T, signal syscall.Signal) {
	t.Helper()
	must(t, m.process.Process.Signal(signal))
}

// awaitExit waits for the end of the process, and returns its exit code, -1 if a signal ended it.
func (m *manager) awaitExit(t *testing.T) int {
	t.Helper()
	select {
	case <-m.exited:
		return m.process.ProcessState.ExitCode()
	case <-time.After(patience):
		t.Fatalf("%s has not ended within %v", m.name, patience)
		return 0
	}
}

// awaitLeader waits until one of two processes leads, and returns it and the other.
func awaitLeader(t *testing.T, a, b *manager) (leader, standby *manager) {
	t.Helper()
	testcluster.Eventually(t, patience, "one of "+a.name+" and "+b.name+" leads", func() bool {
		if a.leads() {
			leader, standby = a, b
		} else if b.leads() {
			leader, standby = b, a
		}
		return leader != nil
	})
	return leader, standby
}

// load creates ReplicaSets of one pod until the test stops it.
func (c *cluster) load(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			// The API server refuses some while it is busy; the next attempt creates another one.
			_, _ = c.client.AppsV1().ReplicaSets("default").Create(ctx, replicaSet(), metav1.CreateOptions{})
			time.Sleep(20 * time.Millisecond)
		}
	}()
	return func() { cancel(); <-done }
}

func replicaSet() *appsv1.ReplicaSet {
	labels := map[string]string{"app": "standby"}
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "standby-", Namespace: "default", Labels: labels},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: ptr.To[int32](1), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}},
			},
		},
	}
}

// write is a write of a controller in the audit log.
type write struct {
	UserAgent string `json:"userAgent"`
	Verb      string `json:"verb"`
	URI       string `json:"requestURI"`
	ObjectRef struct {
		Resource, Subresource string
	} `json:"objectRef"`
	Received time.Time          `json:"requestReceivedTimestamp"`
	Answered time.Time          `json:"stageTimestamp"`
	Response struct{ Code int } `json:"responseStatus"`
}

// notActions are resources that a controller manager writes in every role: the lease of the election, events about it,
// and reviews of requests to its own pages.
var notActions = map[string]bool{"leases": true, "events": true, "tokenreviews": true, "subjectaccessreviews": true}

// writes returns the successful writes of the controllers of each process.
func (c *cluster) writes(t *testing.T) map[string][]write {
	t.Helper()
	file, err := os.Open(c.audit)
	must(t, err)
	defer file.Close()
	found := map[string][]write{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var w write
		must(t, json.Unmarshal(lines.Bytes(), &w))
		name, _, _ := strings.Cut(w.UserAgent, "/")
		if strings.HasPrefix(name, "manager-") && !notActions[w.ObjectRef.Resource] && w.Response.Code < 300 {
			found[name] = append(found[name], w)
		}
	}
	must(t, lines.Err())
	return found
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
