package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	clusterName = "e2e"
	nodeCount   = 100
	podCount    = 200
	eventTTL    = 10 * time.Second
)

// TestCluster checks the functions of k1m in one cluster. The steps depend on each other, so the first
// failure ends the test.
func TestCluster(t *testing.T) {
	w := newWorkspace(t)
	up := []string{
		"up", "--name", clusterName, "--nodes", fmt.Sprint(nodeCount), "--store", storeKind(), "--wal-mode", "fsync", "--apiservers", "2",
		"--apiserver-env", "KUBE_WATCHCACHE_CONSISTENCY_CHECKER=true",
		"--apiserver-arg", fmt.Sprintf("event-ttl=%s", eventTTL),
	}
	t.Cleanup(func() { w.k1m(t, "down", "--name", clusterName) })
	t.Log(w.succeed(t, up...).stdout)
	steps := []struct {
		name string
		run  func(*testing.T, *workspace)
	}{
		{"nodes are ready", nodesAreReady},
		{"up is idempotent", upIsIdempotent},
		{"files are private", filesArePrivate},
		{"pods run and are deleted", podsRunAndAreDeleted},
		{"bulk continues after an interruption", bulkCommandResumes},
		{"deployment rolls out and scales", deploymentRollsOut},
		{"namespace is deleted with its objects", namespaceIsDeleted},
		{"lease is renewed", leaseIsRenewed},
		{"nodes stay ready after a kill of kwok", nodesSurviveKillOfKwok},
		{"event expires", eventExpires},
		{"watch resumes after a kill of the API server", watchResumes},
		{"acknowledged writes survive a kill of the store", storeKeepsAcknowledgedWrites},
		{"data survives down and up", dataSurvivesDownKeepData},
		{"caches agree with the store", cachesAgree},
		{"killed supervisor leaves no process", killedSupervisorLeavesNoProcess},
		{"down removes the cluster", downRemovesTheCluster},
	}
	for _, step := range steps {
		if !t.Run(step.name, func(t *testing.T) { step.run(t, w) }) {
			w.logTails(t)
			return
		}
	}
}

func nodesAreReady(t *testing.T, w *workspace) {
	nodes, err := w.client(t, clusterName).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	zones := map[string]int{}
	for _, node := range nodes.Items {
		zones[node.Labels[corev1.LabelTopologyZone]]++
	}
	if len(nodes.Items) != nodeCount || len(zones) != 3 || zones["zone-0"] < nodeCount/3 {
		t.Fatalf("%d nodes, by zone %v; want %d nodes in three zones", len(nodes.Items), zones, nodeCount)
	}
	s := w.status(t, clusterName)
	if s.State != "running" || s.Nodes.Ready != nodeCount || s.Nodes.NotReady != 0 || s.Objects.Count < 2*nodeCount || s.Objects.Revision == 0 {
		t.Fatalf("the cluster is not running with %d ready nodes: %+v", nodeCount, s)
	}
	for _, c := range s.Components {
		if c.PID == 0 || c.State != "ready" || c.Restarts != 0 || c.MemoryBytes == 0 || c.Address == "" {
			t.Errorf("a component is not ready, was restarted, or has an incomplete status: %+v", c)
		}
	}
}

func upIsIdempotent(t *testing.T, w *workspace) {
	before := w.status(t, clusterName)
	r := w.succeed(t, "up", "--name", clusterName)
	if !strings.Contains(r.stdout, "is already running and healthy") {
		t.Errorf("up on a running cluster prints %q", r.stdout)
	}
	after := w.status(t, clusterName)
	if before.Supervisor != after.Supervisor || before.component(t, "store").PID != after.component(t, "store").PID {
		t.Errorf("up on a running cluster restarted processes")
	}
	refused := w.k1m(t, "up", "--name", clusterName, "--apiservers", "3")
	want := fmt.Sprintf("k1m: cluster %q: the cluster is running with other settings (--apiservers is 2); stop it with `k1m down --keep-data --name %s` first\n", clusterName, clusterName)
	if refused.code != 1 || refused.stderr != want {
		t.Errorf("up with another setting than that of the running cluster: exit code %d, %q", refused.code, refused.stderr)
	}
}

func filesArePrivate(t *testing.T, w *workspace) {
	path := strings.TrimSpace(w.succeed(t, "kubeconfig", "--name", clusterName, "--path").stdout)
	keys, err := filepath.Glob(filepath.Join(w.clusterDir(clusterName), "pki", "*.key"))
	must(t, err)
	for _, file := range append(keys, path) {
		info, err := os.Stat(file)
		must(t, err)
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, want 0600", file, info.Mode().Perm())
		}
	}
	info, err := os.Stat(filepath.Join(w.clusterDir(clusterName), "pki"))
	must(t, err)
	if info.Mode().Perm() != 0o700 || len(keys) == 0 {
		t.Errorf("the directory pki has mode %v and %d keys, want mode 0700 and keys", info.Mode().Perm(), len(keys))
	}
}

func podsRunAndAreDeleted(t *testing.T, w *workspace) {
	r := w.succeed(t, "pods", "create", "--name", clusterName, "--count", fmt.Sprint(podCount))
	if want := fmt.Sprintf("all %d pods are running", podCount); !strings.Contains(r.stdout, want) {
		t.Errorf("pods create printed %q, want %q", r.stdout, want)
	}
	if s := w.status(t, clusterName); s.Pods.ByPhase["Running"] != podCount {
		t.Errorf("the status has the pods %+v, want %d running pods", s.Pods, podCount)
	}
	w.succeed(t, "pods", "delete", "--name", clusterName, "--count", fmt.Sprint(podCount))
	if s := w.status(t, clusterName); s.Pods.Total != 0 {
		t.Errorf("pods still exist after pods delete: %+v", s.Pods)
	}
}

func deploymentRollsOut(t *testing.T, w *workspace) {
	client := w.client(t, clusterName)
	deployments := client.AppsV1().Deployments(metav1.NamespaceDefault)
	_, err := deployments.Create(t.Context(), deployment("web", 20), metav1.CreateOptions{})
	must(t, err)
	awaitReplicas(t, client, "web", 20)

	scale, err := deployments.GetScale(t.Context(), "web", metav1.GetOptions{})
	must(t, err)
	scale.Spec.Replicas = 50
	_, err = deployments.UpdateScale(t.Context(), "web", scale, metav1.UpdateOptions{})
	must(t, err)
	awaitReplicas(t, client, "web", 50)

	current, err := deployments.Get(t.Context(), "web", metav1.GetOptions{})
	must(t, err)
	current.Spec.Template.Spec.Containers[0].Image = "registry.k8s.io/pause:3.11"
	_, err = deployments.Update(t.Context(), current, metav1.UpdateOptions{})
	must(t, err)
	awaitReplicas(t, client, "web", 50)
	must(t, deployments.Delete(t.Context(), "web", metav1.DeleteOptions{}))
}

func deployment(name string, replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "registry.k8s.io/pause:3.10"}}},
			},
		},
	}
}

// awaitReplicas waits until a Deployment has only updated and available pods.
func awaitReplicas(t *testing.T, client kubernetes.Interface, name string, replicas int32) {
	t.Helper()
	eventually(t, patience, "the rollout is complete", func() error {
		d, err := client.AppsV1().Deployments(metav1.NamespaceDefault).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		s := d.Status
		if s.ObservedGeneration < d.Generation || s.UpdatedReplicas != replicas || s.AvailableReplicas != replicas || s.Replicas != replicas {
			return fmt.Errorf("generation %d, status %+v", d.Generation, s)
		}
		return nil
	})
}

func namespaceIsDeleted(t *testing.T, w *workspace) {
	client := w.client(t, clusterName)
	w.succeed(t, "pods", "create", "--name", clusterName, "--count", "10", "--namespace", "brief")
	must(t, client.CoreV1().Namespaces().Delete(t.Context(), "brief", metav1.DeleteOptions{}))
	eventually(t, patience, "namespace is gone", func() error {
		_, err := client.CoreV1().Namespaces().Get(t.Context(), "brief", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("still exists (%v)", err)
	})
}

func leaseIsRenewed(t *testing.T, w *workspace) {
	leases := w.client(t, clusterName).CoordinationV1().Leases(corev1.NamespaceNodeLease)
	first, err := leases.Get(t.Context(), "node-000000", metav1.GetOptions{})
	must(t, err)
	eventually(t, patience, "lease is renewed", func() error {
		now, err := leases.Get(t.Context(), "node-000000", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !now.Spec.RenewTime.After(first.Spec.RenewTime.Time) {
			return fmt.Errorf("the renew time is still %v", now.Spec.RenewTime)
		}
		return nil
	})
}

// nodesSurviveKillOfKwok also checks that pods start before the Leases of the killed kwok expire. On a busy machine they may start
// later for other reasons, but not after each of several kills.
func nodesSurviveKillOfKwok(t *testing.T, w *workspace) {
	const kills = 5
	// A Lease is valid for 40 s, and kwok renews it every 10 s.
	const firstExpiry = 30 * time.Second
	for i := range kills {
		took := w.startPodsAfterKill(t)
		t.Logf("the first pod started %v after a kill of kwok", took)
		if took < firstExpiry {
			return
		}
		if i == kills-1 {
			t.Errorf("after each of %d kills of kwok, no pod started before the Leases expired", kills)
		}
	}
}

// startPodsAfterKill kills kwok and creates pods. It returns how long after the kill the first of them started.
func (w *workspace) startPodsAfterKill(t *testing.T) time.Duration {
	t.Helper()
	// Pods have times in seconds.
	killed := time.Now().Truncate(time.Second)
	w.kill(t, clusterName, "kwok")
	w.succeed(t, "pods", "create", "--name", clusterName, "--count", "100", "--prefix", "after-")
	pods, err := w.client(t, clusterName).CoreV1().Pods(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	first := time.Now()
	for _, pod := range pods.Items {
		if start := pod.Status.StartTime; strings.HasPrefix(pod.Name, "after-") && start != nil && start.Time.Before(first) {
			first = start.Time
		}
	}
	if s := w.status(t, clusterName); s.Nodes.Ready != nodeCount {
		t.Errorf("after the restart of kwok the nodes are %+v, want %d ready", s.Nodes, nodeCount)
	}
	w.succeed(t, "pods", "delete", "--name", clusterName, "--count", "100", "--prefix", "after-")
	return first.Sub(killed)
}

func eventExpires(t *testing.T, w *workspace) {
	client := w.client(t, clusterName)
	events := client.CoreV1().Events(metav1.NamespaceDefault)
	// The TTL begins before the answer is received.
	created := time.Now()
	_, err := events.Create(t.Context(), &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: "brief"},
		InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: "node-000000", Namespace: metav1.NamespaceDefault},
		Reason:         "Test",
	}, metav1.CreateOptions{})
	must(t, err)
	eventually(t, patience, "event expires", func() error {
		_, err := events.Get(t.Context(), "brief", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("still exists (%v)", err)
	})
	if lived := time.Since(created); lived < eventTTL {
		t.Errorf("the event expired after %s, before its TTL of %s", lived, eventTTL)
	}
}

func dataSurvivesDownKeepData(t *testing.T, w *workspace) {
	client := w.client(t, clusterName)
	maps := client.CoreV1().ConfigMaps(metav1.NamespaceDefault)
	created, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "keeper"}, Data: map[string]string{"k": "v"}}, metav1.CreateOptions{})
	must(t, err)
	w.succeed(t, "down", "--name", clusterName, "--keep-data")
	w.assertNothingRuns(t)
	if s := w.status(t, clusterName); s.State != "stopped" {
		t.Errorf("the state after down is %q, want stopped", s.State)
	}
	w.succeed(t, "up", "--name", clusterName)
	found, err := w.client(t, clusterName).CoreV1().ConfigMaps(metav1.NamespaceDefault).Get(t.Context(), "keeper", metav1.GetOptions{})
	must(t, err)
	if found.UID != created.UID || found.ResourceVersion != created.ResourceVersion || found.Data["k"] != "v" {
		t.Errorf("after down and up the ConfigMap is %+v, want %+v", found, created)
	}
	if s := w.status(t, clusterName); s.Nodes.Total != nodeCount {
		t.Errorf("after down and up the nodes are %+v, want %d", s.Nodes, nodeCount)
	}
}

func killedSupervisorLeavesNoProcess(t *testing.T, w *workspace) {
	killSupervisor(t, w)
	w.assertNothingRuns(t)
	// A process that exits has no command line any more while it still holds its files.
	eventually(t, patience, "the status is dead with one problem", func() error {
		s := w.status(t, clusterName)
		if s.State != "dead" || len(s.Problems) != 1 || !strings.HasPrefix(s.Problems[0], "supervisor not running") {
			return fmt.Errorf("the status is %+v", s)
		}
		return nil
	})
	w.succeed(t, "up", "--name", clusterName)
	if s := w.status(t, clusterName); s.State != "running" || s.Nodes.Total != nodeCount {
		t.Errorf("after up the status is %+v, want a running cluster with %d nodes", s, nodeCount)
	}
}

func downRemovesTheCluster(t *testing.T, w *workspace) {
	w.succeed(t, "down", "--name", clusterName)
	w.assertNothingRuns(t)
	if _, err := os.Stat(w.clusterDir(clusterName)); !os.IsNotExist(err) {
		t.Errorf("the cluster's directory still exists (%v)", err)
	}
}

// logTails prints the last lines of all logs, which help to find the cause of a failure.
func (w *workspace) logTails(t *testing.T) {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join(w.clusterDir(clusterName), "logs", "*.log"))
	for _, file := range files {
		content, _ := os.ReadFile(file)
		var last []string
		for lines := bufio.NewScanner(bytes.NewReader(content)); lines.Scan(); {
			last = append(last, lines.Text()[:min(len(lines.Text()), 200)])
		}
		t.Logf("%s:\n%s", filepath.Base(file), strings.Join(last[max(0, len(last)-10):], "\n"))
	}
}
