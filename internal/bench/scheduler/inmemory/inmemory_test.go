package inmemory

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/reference"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// TestDecisionsEqualTheReference compares all decisions of the index with the reference, for each kind of
// pods. All runs share the process, so the test also detects state that remains from an earlier run.
func TestDecisionsEqualTheReference(t *testing.T) {
	for _, kind := range Kinds {
		t.Run(kind, func(t *testing.T) {
			o := DefaultOptions()
			o.PodKind, o.Nodes, o.Pods, o.Zones, o.Check = kind, 200, 300, 7, "1.0"
			o.Existing = 200
			runAndCheck(t, o)
		})
	}
}

// TestReferenceAgreesWithKubeScheduler uses fewer than 100 nodes, so that kube-scheduler scores all of
// them and its decisions must equal the reference.
func TestReferenceAgreesWithKubeScheduler(t *testing.T) {
	o := DefaultOptions()
	o.Scheduler, o.PodKind, o.Nodes, o.Pods, o.Check = clusterdir.SchedulerKube, Mixed, 90, 300, "1.0"
	runAndCheck(t, o)
}

// TestKubeSchedulerSamplesNodes checks that deviations are detected: with 1,000 nodes, kube-scheduler
// scores only a sample of them.
func TestKubeSchedulerSamplesNodes(t *testing.T) {
	o := DefaultOptions()
	o.Scheduler, o.Nodes, o.Pods, o.Check = clusterdir.SchedulerKube, 1000, 1200, "50"
	if result := runValid(t, o); result.Deviations == 0 || result.Err() == nil {
		t.Errorf("no deviation of kube-scheduler was detected, although it samples nodes: %+v", result)
	}
}

// TestUnschedulablePodsAreCounted schedules more pods than fit on the nodes. Validate would reject such
// options.
func TestUnschedulablePodsAreCounted(t *testing.T) {
	for _, name := range []string{clusterdir.SchedulerDist, clusterdir.SchedulerKube} {
		o := DefaultOptions()
		o.Scheduler, o.Nodes, o.Pods, o.Check = name, 3, 400, "1.0"
		result, err := Run(quiet(t), o, progress.New(io.Discard))
		if err != nil {
			t.Fatal(err)
		}
		if err := result.Err(); err != nil || result.Unschedulable != 400-3*110 {
			t.Errorf("%s: %d of 400 pods are unschedulable, want 70; error: %v", name, result.Unschedulable, err)
		}
	}
}

func TestInterruptedRunReturnsPartialResult(t *testing.T) {
	o := DefaultOptions()
	o.Scheduler, o.Nodes, o.Pods = clusterdir.SchedulerKube, 1000, 100_000
	// On a busy machine, the first decision comes later.
	for limit := time.Second; ; limit *= 2 {
		ctx, cancel := context.WithTimeout(quiet(t), limit)
		result, err := Run(ctx, o, progress.New(io.Discard))
		cancel()
		if errors.Is(err, ErrInterrupted) && result.Decided == 0 && limit < time.Minute {
			continue
		}
		if !errors.Is(err, ErrInterrupted) || result.Decided == 0 || result.Decided == o.Pods {
			t.Errorf("the interrupted run decided %d of %d pods and returned %v", result.Decided, o.Pods, err)
		}
		return
	}
}

func runAndCheck(t *testing.T, o Options) Result {
	t.Helper()
	result := runValid(t, o)
	if err := result.Err(); err != nil {
		t.Error(err)
	}
	if result.DecisionsChecked < o.Pods {
		t.Errorf("only %d of %d decisions were checked", result.DecisionsChecked, o.Pods)
	}
	return result
}

// runValid validates the options and runs the scheduler.
func runValid(t *testing.T, o Options) Result {
	t.Helper()
	o.Complete()
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	result, err := Run(quiet(t), o, progress.New(io.Discard))
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// quiet returns a context whose logger discards all messages.
func quiet(t *testing.T) context.Context { return klog.NewContext(t.Context(), logr.Discard()) }

func TestInvalidOptionsAreUsageErrors(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"nodes":     func(o *Options) { o.Nodes = 0 },
		"pods":      func(o *Options) { o.Pods = -1 },
		"full":      func(o *Options) { o.Nodes, o.Pods = 10, 1001 },
		"kind":      func(o *Options) { o.PodKind = "x" },
		"scheduler": func(o *Options) { o.Scheduler = "x" },
		"zones":     func(o *Options) { o.Zones = 0 },
		"existing":  func(o *Options) { o.PodKind, o.Existing = VanishedNodes, -1 },
		"too many":  func(o *Options) { o.PodKind, o.Existing = VanishedNodes, 1_000_000 },
		"check":     func(o *Options) { o.Check = "many" },
		"fraction":  func(o *Options) { o.Check = "1.5" },
		"negative":  func(o *Options) { o.Check = "-1" },
		"NaN":       func(o *Options) { o.Check = "NaN" },
	} {
		o := DefaultOptions()
		change(&o)
		o.Complete()
		if err := o.Validate(); !errors.Is(err, usage.Err) {
			t.Errorf("with invalid options (%s), Validate returned %v, not a usage error", name, err)
		}
	}
}

func TestCheckCount(t *testing.T) {
	for _, c := range []struct {
		nodes, pods int
		check       string
		want        int
	}{
		{100, 50, "", 50}, {5000, 2000, "", 100}, {100_000, 25_000, "", 30}, {1_000_000, 2000, "", 30},
		{100, 50, "0", 0}, {100, 50, "7", 7}, {100, 50, "70", 50}, {100, 50, "0.1", 5}, {100, 50, "1.0", 50}, {100, 50, "1", 1},
	} {
		o := DefaultOptions()
		o.Nodes, o.Pods, o.Check = c.nodes, c.pods, c.check
		if got, err := o.checkCount(); err != nil || got != c.want {
			t.Errorf("for %+v, checkCount returned %d, %v", c, got, err)
		}
	}
}

func TestAddCheck(t *testing.T) {
	someFit := reference.Decision{Best: sets.New("a", "b"), Feasible: 5}
	noneFits := reference.Decision{}
	for name, c := range map[string]struct {
		node     string
		expected reference.Decision
		deviates bool
	}{
		"one of the best":        {"b", someFit, false},
		"not the best":           {"c", someFit, true},
		"no node, but some fit":  {"", someFit, true},
		"a node, but none fits":  {"c", noneFits, true},
		"no node, and none fits": {"", noneFits, false},
	} {
		var r Result
		r.addCheck(0, decision{number: 1, node: c.node}, c.expected)
		if (r.Deviations == 1) != c.deviates || r.DecisionsChecked != 1 || (r.FirstDeviation != "") != c.deviates {
			t.Errorf("%s: the result is %+v, want a deviation: %v", name, r, c.deviates)
		}
	}
}

func TestOvercommittedNodesAreCounted(t *testing.T) {
	o := DefaultOptions()
	o.Nodes = 3
	w := newWorkload(o)
	var decided []decision
	for i := range 111 {
		decided = append(decided, decision{int32(i), nodeName(0)})
	}
	if got := countOvercommitted(w, decided[:110]); got != 0 {
		t.Errorf("with 110 pods on a node, %d nodes are overcommitted, want 0", got)
	}
	if got := countOvercommitted(w, decided); got != 1 {
		t.Errorf("with 111 pods on a node, %d nodes are overcommitted, want 1", got)
	}
}

func TestWorkloads(t *testing.T) {
	o := DefaultOptions()
	o.PodKind = Unique
	seen := sets.New[string]()
	w := newWorkload(o)
	for i := range 1000 {
		requests := w.pod(i).Spec.Containers[0].Resources.Requests
		seen.Insert(requests.Cpu().String() + "/" + requests.Memory().String())
	}
	if seen.Len() != 1000 {
		t.Errorf("1000 unique pods have %d different sizes", seen.Len())
	}

	o.PodKind = Mixed
	if mixed := (&workload{}).mixed(); len(mixed) != 200 {
		t.Errorf("the kind Mixed has %d pod classes, want 200", len(mixed))
	}
	if a, b := newWorkload(o).pod(7), newWorkload(o).pod(7); a.Labels["class"]+a.Labels["app"] != b.Labels["class"]+b.Labels["app"] {
		t.Error("two workloads with the same seed have different pods")
	}

	o.PodKind, o.Existing = VanishedNodes, 1000
	vanished := 0
	for _, pod := range newWorkload(o).existing {
		if strings.HasPrefix(pod.Spec.NodeName, "gone-") != (pod.DeletionTimestamp != nil) {
			t.Fatalf("pod %s on node %s has the deletion timestamp %v; only pods on missing nodes must have one",
				pod.Name, pod.Spec.NodeName, pod.DeletionTimestamp)
		}
		if pod.DeletionTimestamp != nil {
			vanished++
		}
	}
	if vanished != 1000/vanishedEvery {
		t.Errorf("%d pods are on missing nodes, want %d", vanished, 1000/vanishedEvery)
	}
	if podNumber(podName(123)) != 123 {
		t.Error("podNumber is not the inverse of podName")
	}
}
