package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// consistencyCheckTimeout is more than 7.5 minutes, because the API server checks its caches between 5 and
// 7.5 minutes after its start. This time cannot be configured.
const consistencyCheckTimeout = 12 * time.Minute

// churnPause is the time between two rounds of pods until then, so that the cluster leaves the machine to other tests.
const churnPause = 10 * time.Second

func killSupervisor(t *testing.T, w *workspace) {
	t.Helper()
	must(t, syscall.Kill(w.status(t, clusterName).Supervisor.PID, syscall.SIGKILL))
}

// watchResumes kills an API server that serves a watch. A watch at the other server, from the last received
// resource version, must deliver all later events once and in order. After its restart, the killed server
// has an empty cache. A watch at the killed server must deliver all later events of a resource that it does
// not cache, from the history of the store.
func watchResumes(t *testing.T, w *workspace) {
	s := w.status(t, clusterName)
	killed := w.clientAt(t, clusterName, s.component(t, "kube-apiserver").Address)
	other := w.clientAt(t, clusterName, s.component(t, "kube-apiserver-1").Address)

	list, err := killed.CoreV1().ConfigMaps(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	first, err := killed.CoreV1().ConfigMaps(metav1.NamespaceDefault).Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	must(t, err)
	defer first.Stop()
	events, err := killed.CoreV1().Events(metav1.NamespacePublic).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	createConfigMap(t, other, "seen")
	last := expectAdded(t, first, "seen")

	// The events of these objects are not read from the first watch.
	createConfigMap(t, other, "missed-0")
	before := w.killNow(t, clusterName, "kube-apiserver")
	for i := 1; i < 10; i++ {
		createConfigMap(t, other, fmt.Sprintf("missed-%d", i))
		createEvent(t, other, fmt.Sprintf("missed-%d", i))
	}
	second, err := other.CoreV1().ConfigMaps(metav1.NamespaceDefault).Watch(t.Context(), metav1.ListOptions{ResourceVersion: last})
	must(t, err)
	defer second.Stop()
	for i := range 10 {
		expectAdded(t, second, fmt.Sprintf("missed-%d", i))
	}
	w.awaitRestart(t, clusterName, before)
	third, err := killed.CoreV1().Events(metav1.NamespacePublic).Watch(t.Context(), metav1.ListOptions{ResourceVersion: events.ResourceVersion})
	must(t, err)
	defer third.Stop()
	for i := 1; i < 10; i++ {
		expectAdded(t, third, fmt.Sprintf("missed-%d", i))
	}
}

func createEvent(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	_, err := client.CoreV1().Events(metav1.NamespacePublic).Create(t.Context(), &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: name},
		InvolvedObject: corev1.ObjectReference{Kind: "Namespace", Name: metav1.NamespacePublic, Namespace: metav1.NamespacePublic},
	}, metav1.CreateOptions{})
	must(t, err)
}

func createConfigMap(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	_, err := client.CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	must(t, err)
}

// expectAdded reads one event from a watch. It fails the test unless the event is the creation of the
// object with this name.
func expectAdded(t *testing.T, watching watch.Interface, name string) (resourceVersion string) {
	t.Helper()
	select {
	case event, open := <-watching.ResultChan():
		if !open {
			t.Fatalf("the watch was closed before the event for %s", name)
		}
		added, ok := event.Object.(metav1.Object)
		if event.Type != watch.Added || !ok || added.GetName() != name {
			t.Fatalf("the watch delivered %s of %v instead of ADDED of %s", event.Type, event.Object, name)
		}
		return added.GetResourceVersion()
	case <-time.After(patience):
		t.Fatalf("the watch delivered no event for %s within %v", name, patience)
		return ""
	}
}

// storeKeepsAcknowledgedWrites kills the store during writes. All acknowledged writes must exist
// after its restart.
func storeKeepsAcknowledgedWrites(t *testing.T, w *workspace) {
	const writers = 8
	client := w.client(t, clusterName)
	acknowledged := &ledger{versions: map[string]string{}}
	ctx, stop := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for writer := range writers {
		group.Go(func() { acknowledged.write(ctx, client, writer) })
	}
	eventually(t, patience, "writes are acknowledged", func() error {
		if now := acknowledged.count(); now < 10*writers {
			return fmt.Errorf("%d writes were acknowledged", now)
		}
		return nil
	})
	beforeKill := acknowledged.count()
	w.kill(t, clusterName, "store")
	atRecovery := acknowledged.count()
	eventually(t, patience, "writes continue", func() error {
		if now := acknowledged.count(); now < atRecovery+writers {
			return fmt.Errorf("%d writes were acknowledged at the restart, and %d until now", atRecovery, now)
		}
		return nil
	})
	stop()
	group.Wait()
	acknowledged.compare(t, client)
	t.Logf("%d writes were acknowledged, %d of them before the kill", acknowledged.count(), beforeKill)
}

// ledger contains the acknowledged writes.
type ledger struct {
	mu       sync.Mutex
	versions map[string]string // resource versions by name
}

// write creates ConfigMaps until ctx is done and records those that the API server acknowledged.
func (l *ledger) write(ctx context.Context, client kubernetes.Interface, writer int) {
	maps := client.CoreV1().ConfigMaps(metav1.NamespaceDefault)
	for i := 0; ctx.Err() == nil; i++ {
		name := fmt.Sprintf("ledger-%d-%d", writer, i)
		created, err := maps.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Data:       map[string]string{"payload": strings.Repeat(name, 20)},
		}, metav1.CreateOptions{})
		if err != nil {
			time.Sleep(pollInterval)
			continue
		}
		l.mu.Lock()
		l.versions[name] = created.ResourceVersion
		l.mu.Unlock()
	}
}

func (l *ledger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.versions)
}

// compare checks that all acknowledged writes exist.
func (l *ledger) compare(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	list, err := client.CoreV1().ConfigMaps(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	found := map[string]corev1.ConfigMap{}
	for _, item := range list.Items {
		found[item.Name] = item
	}
	for name, version := range l.versions {
		item, exists := found[name]
		if !exists || item.ResourceVersion != version || item.Data["payload"] != strings.Repeat(name, 20) {
			t.Errorf("%s was acknowledged at resource version %s; now it exists: %v, at resource version %q", name, version, exists, item.ResourceVersion)
		}
	}
}

// cachesAgree creates and deletes pods until the API server has compared its caches with the store. The API
// server panics if a cache differs from the store.
func cachesAgree(t *testing.T, w *workspace) {
	if testing.Short() {
		t.Skip("waits 5 to 7.5 minutes for the API server's consistency check")
	}
	client := w.client(t, clusterName)
	wanted := []string{"pods", "nodes", "leases", "configmaps", "namespaces"}
	eventually(t, consistencyCheckTimeout, "the API server has checked its caches", func() error {
		w.succeed(t, "pods", "create", "--name", clusterName, "--count", "50", "--prefix", "churn-")
		w.succeed(t, "pods", "delete", "--name", clusterName, "--count", "50", "--prefix", "churn-")
		time.Sleep(churnPause)
		passed := consistencyChecks(t, client)
		for _, resource := range wanted {
			if passed[resource] == 0 {
				return fmt.Errorf("the cache of %s was not checked yet; passed checks by resource: %v", resource, passed)
			}
		}
		return nil
	})
	for _, server := range []string{"kube-apiserver", "kube-apiserver-1"} {
		log := w.succeed(t, "logs", server, "--name", clusterName).stdout
		if at := regexp.MustCompile(`(?m)^.*(consistency check failed|panic:).*$`).FindString(log); at != "" {
			t.Errorf("the log of %s contains: %s", server, at)
		}
	}
	for _, c := range w.status(t, clusterName).Components {
		if c.Restarts != 0 {
			t.Errorf("%s was restarted %d times (%s)", c.Name, c.Restarts, c.LastExit)
		}
	}
}

var consistencyMetric = regexp.MustCompile(`(?m)^apiserver_storage_consistency_checks_total\{.*resource="([^"]+)".*status="([^"]+)".*\} (\d+)$`)

// consistencyChecks counts the passed checks by resource. A failed check fails the test.
func consistencyChecks(t *testing.T, client kubernetes.Interface) map[string]int {
	t.Helper()
	metrics, err := client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	must(t, err)
	passed := map[string]int{}
	for _, match := range consistencyMetric.FindAllStringSubmatch(string(metrics), -1) {
		count, err := strconv.Atoi(match[3])
		must(t, err)
		switch match[2] {
		case "success":
			passed[match[1]] += count
		case "failure":
			t.Errorf("the cache of %s differs from the store", match[1])
		}
	}
	return passed
}

// bulkCommandResumes interrupts a bulk command and repeats it. The repeated command must skip the objects
// that exist.
func bulkCommandResumes(t *testing.T, w *workspace) {
	const count = 1000
	args := []string{"nodes", "create", "--name", clusterName, "--prefix", "more-", "--count", fmt.Sprint(count), "-o", "json"}
	nodes := w.client(t, clusterName).CoreV1().Nodes()
	// With a concurrency of 1, the command is slow enough to be interrupted, and the second node exists only
	// after the command has counted the first one.
	first := w.command(t.Context(), append(args, "--concurrency", "1")...)
	interrupted := finishAfter(t, first, syscall.SIGINT, "a second node is created", func() bool {
		_, err := nodes.Get(t.Context(), "more-000001", metav1.GetOptions{})
		return err == nil
	})
	partial := parseSummary(t, interrupted.stdout)
	if interrupted.code != 1 || !partial.Interrupted || partial.Done == 0 || partial.Done >= count {
		t.Fatalf("interrupted command: exit code %d, summary %+v, %s", interrupted.code, partial, interrupted.stderr)
	}
	rest := parseSummary(t, w.succeed(t, args...).stdout)
	// The request in flight at the interruption may have been executed.
	if rest.Skipped < partial.Done || rest.Done+rest.Skipped != count || rest.Failed != 0 || rest.P99Millis <= 0 {
		t.Errorf("the summary of the repeated command is %+v, after the interrupted command's %+v", rest, partial)
	}
	gone := parseSummary(t, w.succeed(t, "nodes", "delete", "--name", clusterName, "--prefix", "more-", "--count", fmt.Sprint(count), "-o", "json").stdout)
	if gone.Done != count {
		t.Errorf("the summary of nodes delete is %+v, want %d done", gone, count)
	}
}

// summary is the part of the output of a bulk command that the tests check.
type summary struct {
	Done, Skipped, Failed int
	Interrupted           bool
	P99Millis             float64
}

func parseSummary(t *testing.T, text string) summary {
	t.Helper()
	var s summary
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return s
}
