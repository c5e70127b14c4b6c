package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// What Kueue documents for its users: the label of a queue, the gates of pods that wait for quota and for their place in
// the topology, and the label of pods that it manages.
const (
	queueLabel    = "kueue.x-k8s.io/queue-name"
	managedLabel  = "kueue.x-k8s.io/managed"
	admissionGate = "kueue.x-k8s.io/admission"
	topologyGate  = "kueue.x-k8s.io/topology"
	// flavorLabel and flavorTaint are what a ResourceFlavor of Kueue would have.
	flavorLabel = "example.com/flavor"
	flavorTaint = "example.com/reserved"
)

// TestQueues starts a cluster with dist-scheduler, and makes the changes that Kueue makes to gated pods and suspended Jobs.
// Then it asks the commands explain and simulate about this cluster.
func TestQueues(t *testing.T) {
	w := newWorkspace(t)
	t.Cleanup(func() { w.k1m(t, "down", "--name", "queues") })
	w.succeed(t, "up", "--name", "queues", "--nodes", "6", "--store", storeKind(), "--scheduler", "dist-scheduler")
	q := &queuedCluster{workspace: w, client: w.client(t, "queues")}
	q.reserveNode(t)
	t.Run("gates", q.gates)
	t.Run("suspended job", q.suspendedJob)
	t.Run("explain", q.explain)
	t.Run("simulate", q.simulate)
}

// queuedCluster is a cluster whose pods wait in queues.
type queuedCluster struct {
	*workspace
	client kubernetes.Interface
	// flavored is the node of the flavor.
	flavored string
}

// reserveNode makes one node that of a flavor.
func (q *queuedCluster) reserveNode(t *testing.T) {
	nodes, err := q.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	q.flavored = nodes.Items[2].Name
	q.succeed(t, "kubectl", "--name", "queues", "--", "label", "node", q.flavored, flavorLabel+"=gpu")
	q.succeed(t, "kubectl", "--name", "queues", "--", "taint", "node", q.flavored, flavorTaint+"=gpu:NoSchedule")
}

// gatedPod returns a pod as Kueue's webhook makes it.
func gatedPod(name string, gates ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: metav1.NamespaceDefault, Labels: map[string]string{queueLabel: "team-a", managedLabel: "true"},
	}}
	pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "none"}}
	for _, gate := range gates {
		pod.Spec.SchedulingGates = append(pod.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: gate})
	}
	return pod
}

// nodeOf returns the node of a pod.
func (q *queuedCluster) nodeOf(t *testing.T, name string) string {
	t.Helper()
	pod, err := q.client.CoreV1().Pods(metav1.NamespaceDefault).Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	return pod.Spec.NodeName
}

// awaitNode waits until a pod has a node.
func (q *queuedCluster) awaitNode(t *testing.T, name string) (node string) {
	t.Helper()
	eventually(t, patience, name+" has a node", func() error {
		if node = q.nodeOf(t, name); node == "" {
			return errors.New("it has none")
		}
		return nil
	})
	return node
}

// change applies a change to a pod, as a controller does.
func (q *queuedCluster) change(t *testing.T, name string, change func(*corev1.Pod)) {
	t.Helper()
	eventually(t, patience, name+" is changed", func() error {
		pod, err := q.client.CoreV1().Pods(metav1.NamespaceDefault).Get(t.Context(), name, metav1.GetOptions{})
		must(t, err)
		change(pod)
		_, err = q.client.CoreV1().Pods(metav1.NamespaceDefault).Update(t.Context(), pod, metav1.UpdateOptions{})
		if err != nil && !apierrors.IsConflict(err) {
			t.Fatal(err)
		}
		return err
	})
}

// ungate removes a gate of a pod, and adds the node selector of a flavor.
func ungate(gate string, selector map[string]string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.SchedulingGates = slices.DeleteFunc(pod.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == gate })
		for key, value := range selector {
			if pod.Spec.NodeSelector == nil {
				pod.Spec.NodeSelector = map[string]string{}
			}
			pod.Spec.NodeSelector[key] = value
		}
	}
}

// gates checks that a pod is scheduled after its last gate is removed, and where the selector that was added meanwhile says.
func (q *queuedCluster) gates(t *testing.T) {
	for _, pod := range []*corev1.Pod{gatedPod("waits", admissionGate), gatedPod("admitted", admissionGate, topologyGate), gatedPod("free")} {
		_, err := q.client.CoreV1().Pods(metav1.NamespaceDefault).Create(t.Context(), pod, metav1.CreateOptions{})
		must(t, err)
	}
	// The pod without gates was created last. When it has a node, the scheduler has seen the others.
	q.awaitNode(t, "free")
	for _, name := range []string{"waits", "admitted"} {
		if node := q.nodeOf(t, name); node != "" {
			t.Errorf("the gated pod %s is on node %s", name, node)
		}
	}
	eventually(t, patience, "the gated pod has the condition SchedulingGated", func() error {
		pod, err := q.client.CoreV1().Pods(metav1.NamespaceDefault).Get(t.Context(), "waits", metav1.GetOptions{})
		must(t, err)
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodScheduled && condition.Reason == corev1.PodReasonSchedulingGated {
				return nil
			}
		}
		return fmt.Errorf("its conditions are %v", pod.Status.Conditions)
	})
	// Kueue admits the pod to the flavor: it adds its selector and toleration together with the removal of the first gate.
	q.change(t, "admitted", func(pod *corev1.Pod) {
		ungate(admissionGate, map[string]string{flavorLabel: "gpu"})(pod)
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Key: flavorTaint, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule})
	})
	marker := gatedPod("marker")
	_, err := q.client.CoreV1().Pods(metav1.NamespaceDefault).Create(t.Context(), marker, metav1.CreateOptions{})
	must(t, err)
	q.awaitNode(t, "marker")
	if node := q.nodeOf(t, "admitted"); node != "" {
		t.Errorf("the pod with one of two gates is on node %s", node)
	}
	q.change(t, "admitted", ungate(topologyGate, nil))
	if node := q.awaitNode(t, "admitted"); node != q.flavored {
		t.Errorf("the admitted pod is on node %s, want %s of its flavor", node, q.flavored)
	}
	if node := q.nodeOf(t, "waits"); node != "" {
		t.Errorf("the pod that is not admitted is on node %s", node)
	}
}

// suspendedJob checks that a Job gets pods when it is resumed, with the selector that was added while it was suspended, and
// that suspending it again frees its room.
func (q *queuedCluster) suspendedJob(t *testing.T) {
	// kwok lets the pods of Jobs succeed, so the Job must need more of them than can run until it is suspended again.
	const parallelism, completions = 20, 100_000
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "train", Namespace: metav1.NamespaceDefault, Labels: map[string]string{queueLabel: "team-a"}}}
	job.Spec = batchv1.JobSpec{Suspend: ptr.To(true), Parallelism: ptr.To[int32](parallelism), Completions: ptr.To[int32](completions)}
	job.Spec.Template.Spec = corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "none"}}}
	jobs := q.client.BatchV1().Jobs(metav1.NamespaceDefault)
	_, err := jobs.Create(t.Context(), job, metav1.CreateOptions{})
	must(t, err)
	eventually(t, patience, "the Job is suspended", func() error {
		return q.jobHas(t.Context(), batchv1.JobSuspended, 0)
	})
	// The template of a Job can be changed only while it is suspended and has no start time: first the template, then suspend.
	patch := fmt.Sprintf(`{"spec":{"template":{"spec":{"nodeSelector":{%q:"gpu"},"tolerations":[{"key":%q,"operator":"Exists"}]}}}}`, flavorLabel, flavorTaint)
	_, err = jobs.Patch(t.Context(), "train", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	must(t, err)
	_, err = jobs.Patch(t.Context(), "train", types.StrategicMergePatchType, []byte(`{"spec":{"suspend":false}}`), metav1.PatchOptions{})
	must(t, err)
	eventually(t, patience, "all pods of the Job are on the node of the flavor", func() error {
		pods, err := q.client.CoreV1().Pods(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{LabelSelector: batchv1.JobNameLabel + "=train"})
		must(t, err)
		placed := 0
		for _, pod := range pods.Items {
			if pod.Spec.NodeName != "" && pod.Spec.NodeName != q.flavored {
				t.Fatalf("pod %s is on node %s, want %s of the flavor", pod.Name, pod.Spec.NodeName, q.flavored)
			}
			if pod.Spec.NodeName != "" {
				placed++
			}
		}
		if placed < parallelism {
			return fmt.Errorf("%d pods have a node, want %d", placed, parallelism)
		}
		return nil
	})
	_, err = jobs.Patch(t.Context(), "train", types.StrategicMergePatchType, []byte(`{"spec":{"suspend":true}}`), metav1.PatchOptions{})
	must(t, err)
	eventually(t, patience, "the pods of the suspended Job are deleted", func() error {
		return q.jobHas(t.Context(), batchv1.JobSuspended, 0)
	})
}

// jobHas returns an error unless the Job has a condition and this number of active pods.
func (q *queuedCluster) jobHas(ctx context.Context, condition batchv1.JobConditionType, active int32) error {
	job, err := q.client.BatchV1().Jobs(metav1.NamespaceDefault).Get(ctx, "train", metav1.GetOptions{})
	if err != nil {
		return err
	}
	has := slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool { return c.Type == condition && c.Status == corev1.ConditionTrue })
	if !has || job.Status.Active != active {
		return fmt.Errorf("it has %d active pods and the conditions %v", job.Status.Active, job.Status.Conditions)
	}
	return nil
}

// distScheduler runs a command of dist-scheduler.
func (q *queuedCluster) distScheduler(t *testing.T, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	return finish(t, exec.CommandContext(ctx, filepath.Join(q.bin, "dist-scheduler"), args...))
}

// explain explains pods of the running cluster.
func (q *queuedCluster) explain(t *testing.T) {
	kubeconfig := strings.TrimSpace(q.succeed(t, "kubeconfig", "--path", "--name", "queues").stdout)
	var e struct {
		BoundTo, HeldBack, Search string
		BestNodes, Deviations     []string
		Nodes, Fitting            int
		Rejections                []struct {
			Plugin string
			Count  int
		}
	}
	explained := func(pod string) {
		t.Helper()
		r := q.distScheduler(t, "explain", "--kubeconfig", kubeconfig, "--pod", pod, "-o", "json")
		if r.code != 0 {
			t.Fatalf("explain exits with code %d: %s", r.code, r.stderr)
		}
		e.Deviations = nil
		must(t, json.Unmarshal([]byte(r.stdout), &e))
	}
	explained("default/admitted")
	if e.BoundTo != q.flavored || !slices.Equal(e.BestNodes, []string{q.flavored}) || e.Search != "index" || e.Nodes != 6 || e.Fitting != 1 {
		t.Errorf("explain says %+v, want that only node %s fits", e, q.flavored)
	}
	if len(e.Rejections) != 1 || e.Rejections[0].Plugin != "NodeAffinity" || e.Rejections[0].Count != 5 {
		t.Errorf("explain has the rejections %+v, want 5 nodes by NodeAffinity", e.Rejections)
	}
	explained("default/waits")
	if !strings.Contains(e.HeldBack, admissionGate) || e.Fitting != 5 {
		t.Errorf("explain says %+v, want that the gate %s holds the pod back and 5 nodes fit", e, admissionGate)
	}
	if r := q.distScheduler(t, "explain", "--kubeconfig", kubeconfig, "--pod", "none"); r.code != 1 || strings.Count(r.stderr, "\n") != 1 {
		t.Errorf("explain of a pod that does not exist: code %d, %q", r.code, r.stderr)
	}
}

// saveStore saves a snapshot of the store, as `etcdctl snapshot save` does.
func (q *queuedCluster) saveStore(t *testing.T, path string) {
	t.Helper()
	content, err := storeClient(t, q.workspace, "queues").Snapshot(t.Context())
	must(t, err)
	defer content.Close()
	file, err := os.Create(path)
	must(t, err)
	_, err = io.Copy(file, content)
	must(t, errors.Join(err, file.Close()))
}

// simulate simulates a Deployment in a snapshot of the store, in a snapshot of the cluster, and in what kubectl exports. The
// results must be equal, and nothing in the cluster may change.
func (q *queuedCluster) simulate(t *testing.T) {
	dir := t.TempDir()
	manifest, snapshot, export, stored := filepath.Join(dir, "web.yaml"), filepath.Join(dir, "queues.k1m"), filepath.Join(dir, "cluster.json"), filepath.Join(dir, "store.snapshot")
	deployed := deployment("simulated", 10)
	deployed.APIVersion, deployed.Kind = "apps/v1", "Deployment"
	encoded, err := json.Marshal(deployed)
	must(t, err)
	must(t, os.WriteFile(manifest, encoded, 0o600))
	q.succeed(t, "snapshot", "save", "queues", snapshot)
	resources := "nodes,pods,namespaces,services,replicasets,priorityclasses,csinodes"
	exported := q.succeed(t, "kubectl", "--name", "queues", "--", "get", resources, "-A", "-o", "json").stdout
	must(t, os.WriteFile(export, []byte(exported), 0o600))
	q.saveStore(t, stored)
	var outputs []string
	for _, source := range []string{snapshot, export, stored} {
		started := time.Now()
		r := q.distScheduler(t, "simulate", "--cluster", source, "--pods", manifest, "-o", "json")
		t.Logf("simulate with %s took %s", filepath.Base(source), time.Since(started).Round(time.Millisecond))
		if r.code != 0 {
			t.Fatalf("simulate with %s exits with code %d: %s", source, r.code, r.stderr)
		}
		var report struct {
			Counts struct{ Placed, Unschedulable int }
			Search struct{ Decisions, ByIndex, EqualToKubeScheduler int }
			Pods   []struct{ Pod, Node string }
		}
		must(t, json.Unmarshal([]byte(r.stdout), &report))
		if report.Counts.Placed != 10 || report.Search.ByIndex != 10 || report.Search.EqualToKubeScheduler != 10 {
			t.Errorf("simulate with %s says %+v, want 10 pods placed by the index, as kube-scheduler would", source, report)
		}
		outputs = append(outputs, fmt.Sprint(report.Pods))
	}
	if outputs[0] != outputs[1] || outputs[1] != outputs[2] {
		t.Errorf("the three sources give different results:\n%s", strings.Join(outputs, "\n"))
	}
	if _, err := q.client.AppsV1().Deployments(metav1.NamespaceDefault).Get(t.Context(), "simulated", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the simulated Deployment exists: %v", err)
	}
}
