package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestDistSchedulerSchedulesACluster runs dist-scheduler as the only scheduler of a cluster.
func TestDistSchedulerSchedulesACluster(t *testing.T) {
	w := newWorld(t)
	t.Cleanup(func() { w.k1m(t, "down", "--name", "dist") })
	w.succeed(t, "up", "--name", "dist", "--nodes", "50", "--store", storeKind(), "--scheduler", "dist-scheduler")
	c := w.status(t, "dist").component(t, "dist-scheduler")
	if c.State != "ready" {
		t.Errorf("%+v", c)
	}
	w.succeed(t, "pods", "create", "--name", "dist", "--count", "200")
	if got := w.status(t, "dist").Pods.ByPhase["Running"]; got != 200 {
		t.Errorf("%d pods run", got)
	}
	w.succeed(t, "verify", "--name", "dist")
	// Like kube-scheduler, it dumps its cache on SIGUSR2.
	must(t, syscall.Kill(c.PID, syscall.SIGUSR2))
	eventually(t, 10*time.Second, "a dump of 50 nodes", func() error {
		log := w.succeed(t, "logs", "dist-scheduler", "--name", "dist").stdout
		if dumped := strings.Count(log, "Node name: node-"); dumped < 50 {
			return fmt.Errorf("%d nodes in %d bytes of log", dumped, len(log))
		}
		return nil
	})
	// A pod that is bound by the test, to a node that its affinity excludes.
	nodes := strings.Fields(w.succeed(t, "kubectl", "--name", "dist", "--", "get", "nodes", "-o", "jsonpath={.items[*].metadata.name}").stdout)
	w.succeed(t, "kubectl", "--name", "dist", "--", "run", "astray", "--image", "none", "--overrides",
		fmt.Sprintf(`{"spec":{"nodeName":%q,"nodeSelector":{"kubernetes.io/hostname":%q}}}`, nodes[0], nodes[1]))
	r := w.k1m(t, "verify", "--name", "dist", "-o", "json")
	if r.code != 1 || !strings.Contains(r.stdout, `"node-affinity"`) || !strings.Contains(r.stderr, "1 violations") {
		t.Errorf("exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
}

// TestBenchSchedule measures both schedulers with a minimal load.
func TestBenchSchedule(t *testing.T) {
	w := newWorld(t)
	r := w.succeed(t, "bench", "schedule", "--nodes", "20", "--pods", "100", "--store", storeKind(), "-o", "json")
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
		t.Fatalf("%s", r.stdout)
	}
	for _, s := range result.Schedulers {
		if s.Bound != 100 || s.PodsPerSecond <= 0 || s.SchedulerCPUMicrosPerPod <= 0 || s.APIServerCPUMicrosPerPod <= 0 ||
			s.OversubscribedNodes == nil || *s.OversubscribedNodes != 0 {
			t.Errorf("%+v", s)
		}
	}
}

// TestBenchScheduleMillion runs the benchmark with few nodes.
func TestBenchScheduleMillion(t *testing.T) {
	w := newWorld(t)
	r := w.succeed(t, "bench", "schedule-million", "--nodes", "300", "--pods", "500", "-o", "json")
	var result struct {
		Nodes, Pods, DecisionsChecked, Deviations int
		Seconds, PodsPerSecond, CPUMicrosPerPod   float64
		PeakRSSBytes                              int64
	}
	must(t, json.Unmarshal([]byte(r.stdout), &result))
	if result.Nodes != 300 || result.Pods != 500 || result.DecisionsChecked != 100 || result.Deviations != 0 ||
		result.Seconds <= 0 || result.PodsPerSecond <= 0 || result.CPUMicrosPerPod <= 0 || result.PeakRSSBytes <= 0 {
		t.Errorf("%s", r.stdout)
	}
	// kube-scheduler scores only a sample of this many nodes, so that its decisions differ.
	wrong := w.k1m(t, "bench", "schedule-million", "--nodes", "1000", "--pods", "1200", "--scheduler", "kube-scheduler", "--check", "50")
	if wrong.code != 1 {
		t.Errorf("exit code %d\n%s", wrong.code, wrong.stdout)
	}
}
