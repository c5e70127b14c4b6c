package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	snapshotNodes = 20
	snapshotPods  = 10
	// restoredBump is less than the number by which a restore raises the revision, 10^9.
	restoredBump = 900_000_000
)

// TestSnapshot saves clusters while they run and while they are stopped, and restores them under other names,
// on mem_etcd and on etcd.
func TestSnapshot(t *testing.T) {
	for _, store := range []string{"mem_etcd", "etcd"} {
		t.Run(store, func(t *testing.T) { snapshotOf(t, store) })
	}
}

func snapshotOf(t *testing.T, store string) {
	w := newWorkspace(t)
	for _, name := range []string{store, "etcdutl"} {
		if _, err := exec.LookPath(filepath.Join(w.bin, name)); err != nil {
			t.Fatalf("%v; run `make build`", err)
		}
	}
	t.Cleanup(func() {
		for _, name := range []string{"original", "first", "second"} {
			w.k1m(t, "down", "--name", name)
		}
	})
	running, stopped := filepath.Join(t.TempDir(), "running.k1m"), filepath.Join(t.TempDir(), "stopped.k1m")
	w.succeed(t, "up", "--name", "original", "--store", store, "--nodes", fmt.Sprint(snapshotNodes))
	w.succeed(t, "pods", "create", "--name", "original", "--count", fmt.Sprint(snapshotPods))
	keeper := createKeeper(t, w.client(t, "original"))

	r := w.succeed(t, "snapshot", "save", "original", running)
	t.Log(r.stdout, r.stderr)
	if want := fmt.Sprintf("%d nodes, %d pods", snapshotNodes, snapshotPods); !strings.Contains(r.stdout, want) {
		t.Errorf("snapshot save printed %q, want %q", r.stdout, want)
	}
	inspectSnapshot(t, w, running, store)
	// The original is still running, so the restored cluster needs other ports.
	t.Log(w.succeed(t, "snapshot", "restore", "first", running).stdout)
	startRestored(t, w, "first", keeper)
	w.succeed(t, "down", "--name", "first")

	w.succeed(t, "down", "--name", "original", "--keep-data")
	w.succeed(t, "snapshot", "save", "--name", "original", stopped)
	w.assertNothingRuns(t)
	w.succeed(t, "down", "--name", "original")
	t.Log(w.succeed(t, "snapshot", "restore", "second", stopped).stdout)
	startRestored(t, w, "second", keeper)
	restoredPodsAreManaged(t, w, "second")
}

func createKeeper(t *testing.T, client kubernetes.Interface) *corev1.ConfigMap {
	t.Helper()
	keeper := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "keeper"}, Data: map[string]string{"k": "v"}}
	keeper, err := client.CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(t.Context(), keeper, metav1.CreateOptions{})
	must(t, err)
	return keeper
}

// inspectSnapshot checks the manifest of a file, and that other users cannot read the file.
func inspectSnapshot(t *testing.T, w *workspace, file, store string) {
	t.Helper()
	info, err := os.Stat(file)
	must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the snapshot has mode %v, want 0600", info.Mode().Perm())
	}
	if text := w.succeed(t, "snapshot", "inspect", file).stdout; !strings.Contains(text, "Cluster:     original\n") {
		t.Errorf("snapshot inspect printed %q, want the name of the cluster", text)
	}
	var manifest struct {
		Format int
		Name   string
		Store  struct {
			Kind                        string
			Revision, Keys, Nodes, Pods int64
		}
		Versions struct{ Kubernetes, Store string }
		Files    []struct{ Name, SHA256 string }
	}
	must(t, json.Unmarshal([]byte(w.succeed(t, "snapshot", "inspect", "-o", "json", file).stdout), &manifest))
	s := manifest.Store
	if manifest.Format != 1 || manifest.Name != "original" || s.Kind != store || s.Nodes != snapshotNodes || s.Pods != snapshotPods || s.Keys < 2*snapshotNodes || s.Revision < 1 {
		t.Errorf("the manifest is %+v", manifest)
	}
	if !strings.HasPrefix(manifest.Versions.Kubernetes, "v1.") || manifest.Versions.Store == "unknown" || len(manifest.Files) < 10 {
		t.Errorf("the manifest has the versions %+v and %d files", manifest.Versions, len(manifest.Files))
	}
}

// startRestored starts a restored cluster, and checks that it has all objects, and that a client with an old
// revision is told to list again.
func startRestored(t *testing.T, w *workspace, name string, keeper *corev1.ConfigMap) {
	t.Helper()
	up := w.succeed(t, "up", "--name", name)
	if want := fmt.Sprintf("with %d nodes", snapshotNodes); !strings.Contains(up.stdout, want) {
		t.Errorf("up of the restored cluster printed %q, want %q", up.stdout, want)
	}
	s := w.status(t, name)
	if s.State != "running" || s.Nodes.Ready != snapshotNodes || s.Pods.ByPhase["Running"] != snapshotPods || s.Objects.Revision < restoredBump {
		t.Errorf("the restored cluster is %+v, want %d nodes, %d pods and a higher revision", s, snapshotNodes, snapshotPods)
	}
	if nodes := w.succeed(t, "kubectl", "--name", name, "get", "nodes", "--no-headers").stdout; strings.Count(nodes, " Ready ") != snapshotNodes {
		t.Errorf("kubectl get nodes printed %q, want %d ready nodes", nodes, snapshotNodes)
	}
	maps := w.client(t, name).CoreV1().ConfigMaps(metav1.NamespaceDefault)
	found, err := maps.Get(t.Context(), keeper.Name, metav1.GetOptions{})
	must(t, err)
	if found.UID != keeper.UID || found.Data["k"] != "v" {
		t.Errorf("the restored ConfigMap is %+v, want %+v", found, keeper)
	}
	watch, err := maps.Watch(t.Context(), metav1.ListOptions{ResourceVersion: keeper.ResourceVersion})
	if err == nil {
		event := <-watch.ResultChan()
		watch.Stop()
		err = apierrors.FromObject(event.Object)
	}
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("watch at a revision of the saved cluster = %v, want that it has expired", err)
	}
	kubeconfig := w.succeed(t, "kubeconfig", "--name", name).stdout
	if !strings.Contains(kubeconfig, "current-context: "+name+"\n") || strings.Contains(kubeconfig, "original") {
		t.Errorf("the kubeconfig of the restored cluster has another name:\n%s", kubeconfig)
	}
}

// restoredPodsAreManaged checks that controllers and kwok act on restored objects.
func restoredPodsAreManaged(t *testing.T, w *workspace, name string) {
	t.Helper()
	w.succeed(t, "pods", "create", "--name", name, "--count", "5", "--prefix", "after-")
	w.succeed(t, "pods", "delete", "--name", name, "--count", fmt.Sprint(snapshotPods))
	eventually(t, patience, "only the new pods exist", func() error {
		if s := w.status(t, name); s.Pods.ByPhase["Running"] != 5 || s.Pods.Total != 5 {
			return fmt.Errorf("the pods are %+v", s.Pods)
		}
		return nil
	})
}
