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

// TestDecisionsEqualReference compares all decisions of the index with the reference, for each kind
// of pods. The runs share a process, so that state that outlives a run leads to a deviation.
func TestDecisionsEqualReference(t *testing.T) {
	for _, kind := range Kinds {
		t.Run(kind, func(t *testing.T) {
			o := DefaultOptions()
			o.PodKind, o.Nodes, o.Pods, o.Zones, o.Check = kind, 200, 300, 7, "1.0"
			o.Existing = 200
			runAndCheck(t, o)
		})
	}
}

// TestKubeSchedulerEqualsReference uses fewer than 100 nodes, so that kube-scheduler scores all of
// them and its decisions must equal the reference.
func TestKubeSchedulerEqualsReference(t *testing.T) {
	o := DefaultOptions()
	o.Scheduler, o.PodKind, o.Nodes, o.Pods, o.Check = clusterdir.SchedulerKube, Mixed, 90, 300, "1.0"
	runAndCheck(t, o)
}

// TestDeviationsOfKubeSchedulerAreDetected uses 1,000 nodes, of which kube-scheduler scores only a
// sample, so that some of its decisions deviate from the reference.
func TestDeviationsOfKubeSchedulerAreDetected(t *testing.T) {
	o := DefaultOptions()
	o.Scheduler, o.Nodes, o.Pods, o.Check = clusterdir.SchedulerKube, 1000, 1200, "50"
	if result := measured(t, o); result.Deviations == 0 || result.Err() == nil {
		t.Errorf("result = %+v, Err() = %v, want deviations and an error", result, result.Err())
	}
}

// TestUnschedulablePodsAreCounted has more pods than fit on the nodes, which Validate would reject.
func TestUnschedulablePodsAreCounted(t *testing.T) {
	for _, name := range []string{clusterdir.SchedulerDist, clusterdir.SchedulerKube} {
		o := DefaultOptions()
		o.Scheduler, o.Nodes, o.Pods, o.Check = name, 3, 400, "1.0"
		result, err := Run(quiet(t), o, progress.New(io.Discard))
		if err != nil {
			t.Fatal(err)
		}
		if err := result.Err(); err != nil || result.Unschedulable != 400-3*110 {
			t.Errorf("%s: %d of 400 pods are unschedulable, Err() = %v, want %d and nil", name, result.Unschedulable, err, 400-3*110)
		}
	}
}

func TestInterruptedRunReturnsPartialResult(t *testing.T) {
	o := DefaultOptions()
	o.Scheduler, o.Nodes, o.Pods = clusterdir.SchedulerKube, 1000, 100_000
	ctx, cancel := context.WithTimeout(quiet(t), time.Second)
	defer cancel()
	result, err := Run(ctx, o, progress.New(io.Discard))
	if !errors.Is(err, ErrInterrupted) || result.Decided == 0 || result.Decided == o.Pods {
		t.Errorf("Run() = decisions for %d of %d pods, error %v, want some but not all and %v", result.Decided, o.Pods, err, ErrInterrupted)
	}
}

// runAndCheck runs a benchmark, and checks that each decision was compared and equals the
// reference.
func runAndCheck(t *testing.T, o Options) Result {
	t.Helper()
	result := measured(t, o)
	if err := result.Err(); err != nil {
		t.Errorf("Err() = %v, want nil", err)
	}
	if result.DecisionsChecked < o.Pods {
		t.Errorf("%d decisions were checked, want %d", result.DecisionsChecked, o.Pods)
	}
	return result
}

// measured completes and validates options, and runs a benchmark.
func measured(t *testing.T, o Options) Result {
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

// quiet returns a context whose logger discards everything.
func quiet(t *testing.T) context.Context { return klog.NewContext(t.Context(), logr.Discard()) }

func TestInvalidOptionsAreUsageErrors(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"no nodes":                    func(o *Options) { o.Nodes = 0 },
		"negative number of pods":     func(o *Options) { o.Pods = -1 },
		"more pods than fit":          func(o *Options) { o.Nodes, o.Pods = 10, 1001 },
		"unknown kind of pods":        func(o *Options) { o.PodKind = "x" },
		"unknown scheduler":           func(o *Options) { o.Scheduler = "x" },
		"no zones":                    func(o *Options) { o.Zones = 0 },
		"negative number of existing": func(o *Options) { o.PodKind, o.Existing = VanishedNodes, -1 },
		"more existing than fit":      func(o *Options) { o.PodKind, o.Existing = VanishedNodes, 1_000_000 },
		"check is no number":          func(o *Options) { o.Check = "many" },
		"check is a fraction above 1": func(o *Options) { o.Check = "1.5" },
		"check is negative":           func(o *Options) { o.Check = "-1" },
		"check is NaN":                func(o *Options) { o.Check = "NaN" },
	} {
		o := DefaultOptions()
		change(&o)
		o.Complete()
		if err := o.Validate(); !errors.Is(err, usage.Err) {
			t.Errorf("%s: Validate() = %v, want a usage error", name, err)
		}
	}
}

func TestNumberOfChecksFollowsFromNodes(t *testing.T) {
	for _, c := range []struct {
		nodes, pods int
		check       string
		want        int
	}{
		{100, 50, "", 50}, {5000, 2000, "", 100}, {100_000, 25_000, "", 8}, {1_000_000, 2000, "", 3},
		{100, 50, "0", 0}, {100, 50, "7", 7}, {100, 50, "70", 50}, {100, 50, "0.1", 5}, {100, 50, "1.0", 50}, {100, 50, "1", 1},
	} {
		o := DefaultOptions()
		o.Nodes, o.Pods, o.Check = c.nodes, c.pods, c.check
		if got, err := o.checks(); err != nil || got != c.want {
			t.Errorf("checks() of %d nodes, %d pods, --check %q = %d, %v, want %d", c.nodes, c.pods, c.check, got, err, c.want)
		}
	}
}

func TestJudgeDetectsDeviations(t *testing.T) {
	someFit := reference.Decision{Best: sets.New("a", "b"), Feasible: 5}
	noneFits := reference.Decision{}
	for name, c := range map[string]struct {
		node      string
		reference reference.Decision
		deviates  bool
	}{
		"one of the best nodes":      {"b", someFit, false},
		"not one of the best nodes":  {"c", someFit, true},
		"no node, but some fit":      {"", someFit, true},
		"a node, but none fits":      {"c", noneFits, true},
		"no node, because none fits": {"", noneFits, false},
	} {
		var r Result
		r.judge(0, decision{number: 1, node: c.node}, c.reference)
		if (r.Deviations == 1) != c.deviates || r.DecisionsChecked != 1 || (r.FirstDeviation != "") != c.deviates {
			t.Errorf("%s: result = %+v, want one checked decision that deviates: %v", name, r, c.deviates)
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
	var r Result
	overcommitted(w, decided[:110], &r)
	if r.OversubscribedNodes != 0 {
		t.Errorf("%d nodes overcommitted with 110 pods on a node, want 0", r.OversubscribedNodes)
	}
	if overcommitted(w, decided, &r); r.OversubscribedNodes != 1 {
		t.Errorf("%d nodes overcommitted with 111 pods on a node, want 1", r.OversubscribedNodes)
	}
}

// TestWorkloadsHaveTheirKindOfPods checks that unique pods differ in their requests, that mixed
// pods have 200 classes and are the same in each run, and which existing pods are on missing nodes.
func TestWorkloadsHaveTheirKindOfPods(t *testing.T) {
	o := DefaultOptions()
	o.PodKind = Unique
	seen := sets.New[string]()
	w := newWorkload(o)
	for i := range 1000 {
		requests := w.pod(i).Spec.Containers[0].Resources.Requests
		seen.Insert(requests.Cpu().String() + "/" + requests.Memory().String())
	}
	if seen.Len() != 1000 {
		t.Errorf("1000 unique pods have %d different requests, want 1000", seen.Len())
	}

	o.PodKind = Mixed
	if mixed := (&workload{}).mixed(); len(mixed) != 200 {
		t.Errorf("mixed() = %d classes, want 200", len(mixed))
	}
	if a, b := newWorkload(o).pod(7), newWorkload(o).pod(7); a.Labels["class"]+a.Labels["app"] != b.Labels["class"]+b.Labels["app"] {
		t.Errorf("pod(7) of two workloads has labels %v and %v, want equal labels", a.Labels, b.Labels)
	}

	o.PodKind, o.Existing = VanishedNodes, 1000
	vanished := 0
	for _, pod := range newWorkload(o).existing {
		if strings.HasPrefix(pod.Spec.NodeName, "gone-") != (pod.DeletionTimestamp != nil) {
			t.Fatalf("pod %s is on %s with deletion timestamp %v, want a timestamp if and only if the node is missing", pod.Name, pod.Spec.NodeName, pod.DeletionTimestamp)
		}
		if pod.DeletionTimestamp != nil {
			vanished++
		}
	}
	if vanished != 1000/vanishedShare {
		t.Errorf("%d pods are on missing nodes, want %d", vanished, 1000/vanishedShare)
	}
	if got := podNumber(podName(123)); got != 123 {
		t.Errorf("podNumber(podName(123)) = %d, want 123", got)
	}
}
