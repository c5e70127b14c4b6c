package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

// TestAPIServerKilledUnderLoad kills the API server while pods are created and bound. After its
// restart, all accepted pods must be bound, and no node may exceed its capacity.
func TestAPIServerKilledUnderLoad(t *testing.T) {
	const nodes, perNode, pods = 40, 20, 720
	w := newWorkspace(t)
	t.Cleanup(func() { w.k1m(t, "down", "--name", "load") })
	w.succeed(t, "up", "--name", "load", "--nodes", fmt.Sprint(nodes), "--store", storeKind(), "--scheduler", "dist-scheduler")
	client := w.client(t, "load")
	load := newLoad(t, client, corev1.DefaultSchedulerName, perNode)
	var creating sync.WaitGroup
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	for worker := range 4 {
		creating.Go(func() {
			for i := worker; i < pods; i += 4 {
				load.create(ctx, fmt.Sprintf("load-%d", i))
			}
		})
	}
	eventually(t, patience, "some pods are bound", func() error {
		if bound, _ := load.count(t); bound < pods/10 {
			return fmt.Errorf("%d pods are bound", bound)
		}
		return nil
	})
	bound, _ := load.count(t)
	w.kill(t, "load", "kube-apiserver")
	creating.Wait()
	eventually(t, patience, "all pods are bound", func() error {
		bound, all := load.count(t)
		if bound != pods || all != pods {
			return fmt.Errorf("%d of %d pods are bound", bound, all)
		}
		return nil
	})
	t.Logf("%d pods were bound before the kill", bound)
	load.checkCapacity(t)
	if c := w.status(t, "load").component(t, "dist-scheduler"); c.State != "ready" || c.Restarts != 0 {
		t.Errorf("the scheduler is not ready or was restarted: %+v", c)
	}
}

// TestNextToKubeScheduler runs dist-scheduler in a cluster whose scheduler is kube-scheduler. Each scheduler
// must bind exactly the pods with its schedulerName.
func TestNextToKubeScheduler(t *testing.T) {
	const pods = 150
	w := newWorkspace(t)
	t.Cleanup(func() { w.k1m(t, "down", "--name", "both") })
	w.succeed(t, "up", "--name", "both", "--nodes", "20", "--store", storeKind())
	client := w.client(t, "both")
	second := w.startScheduler(t, "both", "leaderElection: {leaderElect: false}\n")
	loads := map[string]*load{}
	var creating sync.WaitGroup
	for _, scheduler := range []string{corev1.DefaultSchedulerName, "dist-scheduler"} {
		l := newLoad(t, client, scheduler, 20)
		loads[scheduler] = l
		creating.Go(func() {
			for i := range pods {
				l.create(t.Context(), fmt.Sprintf("%s-%d", scheduler, i))
			}
		})
	}
	creating.Wait()
	for scheduler, l := range loads {
		eventually(t, patience, "the pods of "+scheduler+" are bound", func() error {
			if bound, _ := l.count(t); bound != pods {
				return fmt.Errorf("%d pods are bound", bound)
			}
			return nil
		})
	}
	loads[corev1.DefaultSchedulerName].checkCapacity(t)
	eventually(t, patience, "each scheduler has created an Event for each of its pods", func() error {
		events, err := client.CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=Scheduled"})
		must(t, err)
		reported := 0
		for _, event := range events.Items {
			scheduler := event.ReportingController
			if !strings.HasPrefix(event.InvolvedObject.Name, scheduler+"-") {
				t.Fatalf("%s was bound by %q", event.InvolvedObject.Name, scheduler)
			}
			reported++
		}
		if reported != 2*pods {
			return fmt.Errorf("%d of %d pods have an Event", reported, 2*pods)
		}
		return nil
	})
	second.end(t)
}

// TestStandbyTakesOver stops the leader of two schedulers. The other scheduler must continue before the
// leader's Lease would expire, because the leader releases the Lease.
//
//	E2E_STANDBY_NODES  number of nodes of the cluster (default 500)
func TestStandbyTakesOver(t *testing.T) {
	// It is long, so that a standby on a busy machine does not need as long.
	const leaseSeconds = 120
	nodes := os.Getenv("E2E_STANDBY_NODES")
	if nodes == "" {
		nodes = "500"
	}
	w := newWorkspace(t)
	t.Cleanup(func() { w.k1m(t, "down", "--name", "standby") })
	w.succeed(t, "up", "--name", "standby", "--nodes", nodes, "--store", storeKind())
	client := w.client(t, "standby")
	election := fmt.Sprintf("leaderElection: {leaderElect: true, resourceName: dist-scheduler, leaseDuration: %ds, renewDeadline: 60s, retryPeriod: 500ms}\n", leaseSeconds)
	leader := w.startScheduler(t, "standby", election)
	first := awaitHolder(t, client, "")
	standby := w.startScheduler(t, "standby", election)

	load := newLoad(t, client, "dist-scheduler", 100)
	load.create(t.Context(), "before")
	load.awaitBound(t, "before")
	stopped := time.Now()
	must(t, leader.cmd.Process.Signal(syscall.SIGTERM))
	load.create(t.Context(), "after")
	awaitHolder(t, client, first)
	untilLeader := time.Since(stopped)
	load.awaitBound(t, "after")
	untilBound := time.Since(stopped)
	if untilBound > leaseSeconds*time.Second {
		t.Errorf("the standby bound a pod only after %v; it must not wait until the Lease of %d s expires", untilBound, leaseSeconds)
	}
	t.Logf("with %s nodes: the standby became the leader %v after SIGTERM of the old leader, and bound a pod after %v",
		nodes, untilLeader.Round(time.Millisecond), untilBound.Round(time.Millisecond))
	leader.await(t)
	standby.end(t)
}

// awaitHolder waits until the Lease of the schedulers has a holder that differs from other, and returns it.
func awaitHolder(t *testing.T, client kubernetes.Interface, other string) (holder string) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		lease, err := client.CoordinationV1().Leases(metav1.NamespaceSystem).Get(t.Context(), "dist-scheduler", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		must(t, err)
		if id := lease.Spec.HolderIdentity; id != nil && *id != "" && *id != other {
			return *id
		}
	}
	t.Fatalf("no other scheduler acquired the Lease within %v", patience)
	return ""
}

// load creates pods for a scheduler. The CPU request of the pods is the CPU of a node divided by a number.
type load struct {
	client    kubernetes.Interface
	scheduler string
	request   resource.Quantity
}

// newLoad returns a load of which perNode pods fill a node.
func newLoad(t *testing.T, client kubernetes.Interface, scheduler string, perNode int64) *load {
	t.Helper()
	nodes, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{Limit: 1})
	must(t, err)
	whole := nodes.Items[0].Status.Allocatable.Cpu().MilliValue()
	return &load{client: client, scheduler: scheduler, request: *resource.NewMilliQuantity(whole/perNode, resource.DecimalSI)}
}

// create creates a pod. It repeats failed requests until ctx is done.
func (l *load) create(ctx context.Context, name string) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"scheduler": l.scheduler}},
		Spec: corev1.PodSpec{SchedulerName: l.scheduler, Containers: []corev1.Container{{
			Name: "main", Image: "pause",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: l.request}},
		}}},
	}
	for ctx.Err() == nil {
		_, err := l.client.CoreV1().Pods(metav1.NamespaceDefault).Create(ctx, pod, metav1.CreateOptions{})
		if err == nil || apierrors.IsAlreadyExists(err) {
			return
		}
		time.Sleep(pollInterval)
	}
}

// count returns the number of bound pods and the number of all pods.
func (l *load) count(t *testing.T) (bound, all int) {
	t.Helper()
	pods, err := l.client.CoreV1().Pods(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{LabelSelector: "scheduler=" + l.scheduler})
	must(t, err)
	for _, pod := range pods.Items {
		if pod.Spec.NodeName != "" {
			bound++
		}
	}
	return bound, len(pods.Items)
}

func (l *load) awaitBound(t *testing.T, name string) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		pod, err := l.client.CoreV1().Pods(metav1.NamespaceDefault).Get(t.Context(), name, metav1.GetOptions{})
		must(t, err)
		if pod.Spec.NodeName != "" {
			return
		}
	}
	t.Fatalf("%s was not bound within %v", name, patience)
}

// checkCapacity checks that on no node the CPU requests of the pods exceed the capacity.
func (l *load) checkCapacity(t *testing.T) {
	t.Helper()
	pods, err := l.client.CoreV1().Pods(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	nodes, err := l.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	used := map[string]int64{}
	for i := range pods.Items {
		requests := resourcehelper.PodRequests(&pods.Items[i], resourcehelper.PodResourcesOptions{})
		used[pods.Items[i].Spec.NodeName] += requests.Cpu().MilliValue()
	}
	for _, node := range nodes.Items {
		if requested, capacity := used[node.Name], node.Status.Allocatable.Cpu().MilliValue(); requested > capacity {
			t.Errorf("the pods on %s request %d millicores, but its capacity is %d millicores", node.Name, requested, capacity)
		}
	}
}

// schedulerProcess is a scheduler that the test started.
type schedulerProcess struct {
	cmd    *exec.Cmd
	output bytes.Buffer
	ended  chan error
}

// startScheduler starts a dist-scheduler for pods with the schedulerName "dist-scheduler", and waits until it
// is ready. election is the leader election configuration.
func (w *workspace) startScheduler(t *testing.T, cluster, election string, flags ...string) *schedulerProcess {
	t.Helper()
	kubeconfig := strings.TrimSpace(w.succeed(t, "kubeconfig", "--name", cluster, "--path").stdout)
	config := filepath.Join(t.TempDir(), "scheduler.yaml")
	must(t, os.WriteFile(config, []byte(configHeader+election+
		"clientConnection: {kubeconfig: "+kubeconfig+", qps: 1000, burst: 2000}\nprofiles: [{schedulerName: dist-scheduler}]\n"), 0o600))
	port := testcluster.FreePort(t)
	p := &schedulerProcess{ended: make(chan error, 1), cmd: exec.Command(filepath.Join(w.bin, "dist-scheduler"), append([]string{"--config", config,
		"--bind-address", "127.0.0.1", "--secure-port", fmt.Sprint(port), "--cert-dir", t.TempDir(),
		"--authentication-kubeconfig", kubeconfig, "--authorization-kubeconfig", kubeconfig}, flags...)...)}
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	must(t, p.cmd.Start())
	go func() { p.ended <- p.cmd.Wait() }()
	t.Cleanup(func() { p.cmd.Process.Kill() })
	eventually(t, patience, "the scheduler is ready", func() error {
		return ready(fmt.Sprintf("https://127.0.0.1:%d/readyz", port))
	})
	return p
}

// ready returns an error unless a GET request of a URL returns status 200.
func ready(url string) error {
	client := http.Client{Timeout: requestTimeout, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true,
	}}
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s", response.Status)
	}
	return nil
}

// end stops the scheduler and waits until it has exited.
func (p *schedulerProcess) end(t *testing.T) {
	t.Helper()
	must(t, p.cmd.Process.Signal(syscall.SIGTERM))
	p.await(t)
}

// await waits until the scheduler has exited. It ignores the exit code: like kube-scheduler, a leader that
// is stopped reports a lost election and exits with code 1.
func (p *schedulerProcess) await(t *testing.T) {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		t.Fatalf("the scheduler did not exit within %v\n%s", patience, p.output.String())
	}
}
