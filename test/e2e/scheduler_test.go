package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"
)

// TestDistSchedulerAsOnlyScheduler also checks that `k1m verify` reports a pod on a node that its node
// selector excludes.
func TestDistSchedulerAsOnlyScheduler(t *testing.T) {
	w := newWorkspace(t)
	t.Cleanup(func() { w.k1m(t, "down", "--name", "dist") })
	w.succeed(t, "up", "--name", "dist", "--nodes", "50", "--store", storeKind(), "--scheduler", "dist-scheduler")
	c := w.status(t, "dist").component(t, "dist-scheduler")
	if c.State != "ready" {
		t.Errorf("the scheduler is not ready: %+v", c)
	}
	w.succeed(t, "pods", "create", "--name", "dist", "--count", "200")
	if got := w.status(t, "dist").Pods.ByPhase["Running"]; got != 200 {
		t.Errorf("%d pods are running, want 200", got)
	}
	w.succeed(t, "verify", "--name", "dist")
	// Like kube-scheduler, it dumps its cache on SIGUSR2.
	must(t, syscall.Kill(c.PID, syscall.SIGUSR2))
	eventually(t, patience, "the log contains a dump of 50 nodes", func() error {
		log := w.succeed(t, "logs", "dist-scheduler", "--name", "dist").stdout
		if dumped := strings.Count(log, "Node name: node-"); dumped < 50 {
			return fmt.Errorf("the log of %d bytes contains a dump of %d nodes", len(log), dumped)
		}
		return nil
	})
	// The test itself binds this pod to a node that the pod's node selector excludes.
	nodes := strings.Fields(w.succeed(t, "kubectl", "--name", "dist", "--", "get", "nodes", "-o", "jsonpath={.items[*].metadata.name}").stdout)
	w.succeed(t, "kubectl", "--name", "dist", "--", "run", "astray", "--image", "none", "--overrides",
		fmt.Sprintf(`{"spec":{"nodeName":%q,"nodeSelector":{"kubernetes.io/hostname":%q}}}`, nodes[0], nodes[1]))
	r := w.k1m(t, "verify", "--name", "dist", "-o", "json")
	if r.code != 1 || !strings.Contains(r.stdout, `"node-affinity"`) || !strings.Contains(r.stderr, "1 violations") {
		t.Errorf("verify did not report the pod on the wrong node: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
}

// TestBenchSchedule measures both schedulers with few nodes and pods.
func TestBenchSchedule(t *testing.T) {
	w := newWorkspace(t)
	// The CPU time of a process is known in steps of 10 ms, so a scheduler needs some hundred pods.
	const pods = 400
	r := w.succeed(t, "bench", "schedule", "--nodes", "20", "--pods", fmt.Sprint(pods), "--store", storeKind(), "--timeout", upTimeout, "-o", "json")
	var result struct {
		Schedulers []struct {
			Name                     string
			Bound                    int
			PodsPerSecond            float64
			SchedulerCPUMicrosPerPod float64 `json:"schedulerCpuMicrosPerPod"`
			APIServerCPUMicrosPerPod float64 `json:"apiserverCpuMicrosPerPod"`
			OversubscribedNodes      *int
		}
	}
	must(t, json.Unmarshal([]byte(r.stdout), &result))
	if len(result.Schedulers) != 2 || result.Schedulers[0].Name != "dist-scheduler" || result.Schedulers[1].Name != "kube-scheduler" {
		t.Fatalf("the result does not contain dist-scheduler and kube-scheduler: %s", r.stdout)
	}
	for _, s := range result.Schedulers {
		if s.Bound != pods || s.PodsPerSecond <= 0 || s.SchedulerCPUMicrosPerPod <= 0 || s.APIServerCPUMicrosPerPod <= 0 ||
			s.OversubscribedNodes == nil || *s.OversubscribedNodes != 0 {
			t.Errorf("a scheduler has not bound %d pods, or a value is missing: %+v", pods, s)
		}
	}
}

// TestBenchScheduleMillion runs the benchmark with few nodes.
func TestBenchScheduleMillion(t *testing.T) {
	w := newWorkspace(t)
	r := w.succeed(t, "bench", "schedule-million", "--nodes", "300", "--pods", "500", "-o", "json")
	var result struct {
		Nodes, Pods, DecisionsChecked, Deviations int
		Seconds, PodsPerSecond, CPUMicrosPerPod   float64
		PeakRSSBytes                              int64
	}
	must(t, json.Unmarshal([]byte(r.stdout), &result))
	if result.Nodes != 300 || result.Pods != 500 || result.DecisionsChecked != 100 || result.Deviations != 0 ||
		result.Seconds <= 0 || result.PodsPerSecond <= 0 || result.CPUMicrosPerPod <= 0 || result.PeakRSSBytes <= 0 {
		t.Errorf("the result has wrong or missing values: %s", r.stdout)
	}
	// With this number of nodes, kube-scheduler scores only a sample of them, so its decisions differ from
	// those of the reference.
	wrong := w.k1m(t, "bench", "schedule-million", "--nodes", "1000", "--pods", "1200", "--scheduler", "kube-scheduler", "--check", "50")
	if wrong.code != 1 {
		t.Errorf("with deviating decisions the exit code is %d, want 1\n%s", wrong.code, wrong.stdout)
	}
}
