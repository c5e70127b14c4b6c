package realcluster

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

func TestInvalidOptionsAreUsageErrors(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"unknown scheduler":          func(o *Options) { o.Schedulers = []string{"x"} },
		"scheduler twice":            func(o *Options) { o.Schedulers = []string{clusterdir.SchedulerKube, clusterdir.SchedulerKube} },
		"no scheduler":               func(o *Options) { o.Schedulers = nil },
		"no nodes":                   func(o *Options) { o.Cluster.Nodes = 0 },
		"no pods":                    func(o *Options) { o.Pods = 0 },
		"more pods than fit":         func(o *Options) { o.Cluster.Nodes, o.Pods = 10, 1100 },
		"timeout 0":                  func(o *Options) { o.Timeout = 0 },
		"no zones":                   func(o *Options) { o.Cluster.Zones = 0 },
		"unknown store":              func(o *Options) { o.Cluster.Store = "x" },
		"0 replicas":                 func(o *Options) { o.Replicas = []int{1, 0} },
		"number of replicas twice":   func(o *Options) { o.Replicas = []int{2, 4, 2} },
		"no number of replicas":      func(o *Options) { o.Replicas = nil },
		"negative number of relays":  func(o *Options) { o.Replicas, o.Relays = []int{2}, -1 },
		"argument without its value": func(o *Options) { o.Cluster.SchedulerArgs = []string{"v"} },
	} {
		o := DefaultOptions()
		change(&o)
		if err := o.Validate(); !errors.Is(err, usage.Err) {
			t.Errorf("%s: Validate() = %v, want a usage error", name, err)
		}
	}
	if o := DefaultOptions(); o.Validate() != nil {
		t.Errorf("Validate() of the default options = %v, want nil", o.Validate())
	}
}

func TestClusterFlagsFollowOptions(t *testing.T) {
	o := DefaultOptions()
	o.Cluster.Nodes, o.Cluster.Zones = 7, 2
	o.Cluster.SchedulerArgs, o.Cluster.SchedulerEnv = []string{"v=1", "replica-fanout=3"}, []string{"GOGC=400"}
	flags, err := o.clusterFlags(contender{scheduler: clusterdir.SchedulerDist, replicas: 4, relays: 1})
	if err != nil {
		t.Fatal(err)
	}
	got, err := clusterdir.Overlay(clusterdir.DefaultSettings(), flags)
	if err != nil {
		t.Fatal(err)
	}
	if got.Nodes != 7 || got.Zones != 2 || got.Scheduler != clusterdir.SchedulerDist || got.Store != clusterdir.StoreMemEtcd {
		t.Errorf("settings = %+v, want 7 nodes in 2 zones, dist-scheduler and mem_etcd", got)
	}
	if got.SchedulerReplicas != 4 || got.SchedulerRelays != 1 || len(got.SchedulerArgs) != 2 || len(got.SchedulerEnv) != 1 {
		t.Errorf("settings = %+v, want 4 replicas, 1 relay, 2 arguments and 1 environment variable", got)
	}
}

// TestEachNumberOfReplicasIsMeasured checks which schedulers are compared. Replicas apply to
// dist-scheduler only, and a single replica has no relays.
func TestEachNumberOfReplicasIsMeasured(t *testing.T) {
	o := DefaultOptions()
	o.Replicas, o.Relays = []int{1, 2, 4}, 1
	var all []string
	for _, c := range o.contenders() {
		all = append(all, fmt.Sprint(c, " ", c.relays))
	}
	want := []string{
		"dist-scheduler 0", "dist-scheduler with 2 replicas 1", "dist-scheduler with 4 replicas 1", "kube-scheduler 0",
	}
	if !slices.Equal(all, want) {
		t.Errorf("contenders() = %q, want %q", all, want)
	}
}

func TestExistingClusterIsNotRemoved(t *testing.T) {
	t.Setenv("K1M_HOME", t.TempDir())
	dir, err := clusterdir.NewDir("mine")
	if err != nil {
		t.Fatal(err)
	}
	if err := dir.Create(); err != nil {
		t.Fatal(err)
	}
	if err := clusterdir.NewConfig("mine", clusterdir.DefaultSettings()).Save(dir); err != nil {
		t.Fatal(err)
	}
	_, err = Run(t.Context(), dir, DefaultOptions(), progress.New(t.Output()))
	if !errors.Is(err, ErrClusterExists) || !dir.Exists() {
		t.Errorf("Run() in an existing cluster = %v, cluster still exists: %v, want %v and true", err, dir.Exists(), ErrClusterExists)
	}
}

// simulatedWatch sends pods to binds, with a clock that the test controls.
type simulatedWatch struct {
	binds *binds
	now   time.Time
}

func newSimulatedWatch() *simulatedWatch {
	w := &simulatedWatch{now: time.Unix(0, 0)}
	w.binds = newBinds("pod-", func() time.Time { return w.now })
	return w
}

// send advances the clock and sends a pod that requests one core.
func (w *simulatedWatch) send(after time.Duration, name, node string) {
	w.now = w.now.Add(after)
	_ = w.binds.Update(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
		}}},
	})
}

func TestLatencyIsFromCreationToBind(t *testing.T) {
	w := newSimulatedWatch()
	w.send(0, "warm-1", "a")
	w.send(0, "pod-1", "")
	w.send(time.Second, "pod-2", "")
	w.send(time.Second, "pod-1", "a")
	w.send(time.Second, "pod-2", "a")
	w.send(time.Minute, "pod-2", "a") // an update of a bound pod
	count, last := w.binds.bound()
	if count != 2 || !last.Equal(time.Unix(3, 0)) {
		t.Errorf("bound() = %d pods, the last at %v, want 2 and %v", count, last, time.Unix(3, 0))
	}
	if l := w.binds.latency; l.TotalCount() != 2 || l.Min() < 1_990_000 || l.Max() > 2_010_000 {
		t.Errorf("%d latencies of %d to %d µs, want 2 of about 2 s", l.TotalCount(), l.Min(), l.Max())
	}
}

func TestOvercommittedNodesAreCounted(t *testing.T) {
	node := func(name, cpu, pods string) corev1.Node {
		return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourcePods: resource.MustParse(pods),
		}}}
	}
	nodes := []corev1.Node{node("small", "2", "10"), node("few", "9", "2")}
	w := newSimulatedWatch()
	for i := range 2 {
		w.send(0, fmt.Sprintf("pod-s%d", i), "small")
		w.send(0, fmt.Sprintf("warm-f%d", i), "few")
	}
	if got := w.binds.overcommitted(nodes); got != 0 {
		t.Errorf("overcommitted() = %d nodes, want 0", got)
	}
	w.send(0, "pod-s2", "small")
	w.send(0, "pod-f2", "few")
	w.send(0, "pod-x", "gone")
	if got := w.binds.overcommitted(nodes); got != 3 {
		t.Errorf("overcommitted() = %d nodes, want 3", got)
	}
	if got := nodes[0].Status.Allocatable.Cpu().Value(); got != 2 {
		t.Errorf("overcommitted() changed the allocatable cores of a node to %d, want 2", got)
	}
}

func TestErrDescribesViolations(t *testing.T) {
	r := Result{Pods: 5, Schedulers: []Scheduler{{Name: "a", Bound: 5}}}
	if err := r.Err(); err != nil {
		t.Errorf("Err() without violations = %v, want nil", err)
	}
	r.Schedulers = append(r.Schedulers, Scheduler{Name: "b", Bound: 4, OversubscribedNodes: 2})
	want := "b overcommitted 2 nodes, b found no node for 1 of 5 pods; repeat the run with --keep to inspect the cluster"
	if err := r.Err(); err == nil || err.Error() != want {
		t.Errorf("Err() = %v, want %s", err, want)
	}
}

func TestReportComparesSchedulersAndReplicas(t *testing.T) {
	result := Result{Nodes: 10, Pods: 100, Schedulers: []Scheduler{
		{Name: clusterdir.SchedulerDist, Replicas: 1, Bound: 100, PodsPerSecond: 20, SchedulerCPUMicrosPerPod: 500, SchedulerMemoryBytes: 1 << 20},
		{Name: clusterdir.SchedulerDist, Replicas: 4, Bound: 100, PodsPerSecond: 20, SchedulerCPUMicrosPerPod: 700},
		{Name: clusterdir.SchedulerKube, Bound: 100, PodsPerSecond: 10, SchedulerCPUMicrosPerPod: 2000, SchedulerMemoryBytes: 1 << 20},
	}}
	report := &experiment.Result{Errors: experiment.NewTally(0)}
	result.Report(report)
	if rows := report.Tables[0].Rows; len(rows) != 3 || rows[1][1] != 4 || rows[2][0] != clusterdir.SchedulerKube {
		t.Errorf("rows = %v, want 3, the second with 4 replicas and the third of kube-scheduler", rows)
	}
	if len(report.Ratios) != 3 || report.Ratios[0].Ratio != 2 || report.Ratios[1].Ratio != 0.25 {
		t.Errorf("ratios = %+v, want 3, the first 2 and the second 0.25", report.Ratios)
	}
	if len(report.Notes) != 1 || !strings.Contains(report.Notes[0], "1.40 ×") {
		t.Errorf("notes = %q, want one with 1.40 ×", report.Notes)
	}
	if len(report.Series) != 3 || len(report.Series[0].Points) != 2 || report.Series[0].Points[1] != (experiment.Point{4, 700}) {
		t.Errorf("series = %+v, want 3, the first with 700 µs for 4 replicas", report.Series)
	}
}

// TestMedianIsSampleWithMedianCPU checks that the result is the sample with the median CPU time,
// unless a sample violates an invariant.
func TestMedianIsSampleWithMedianCPU(t *testing.T) {
	sample := func(cpu float64, bound int) Scheduler {
		return Scheduler{Name: "dist-scheduler", Bound: bound, SchedulerCPUMicrosPerPod: cpu}
	}
	if one := median([]Scheduler{sample(5, 9)}, 9); one.SchedulerCPUMicrosPerPod != 5 || one.CPUSamples != nil {
		t.Errorf("median() of one sample = %+v, want the sample without a list of CPU times", one)
	}
	three := median([]Scheduler{sample(7, 9), sample(5, 9), sample(6, 9)}, 9)
	if three.SchedulerCPUMicrosPerPod != 6 || !slices.Equal(three.CPUSamples, []float64{5, 6, 7}) {
		t.Errorf("median() of three samples = %+v, want the one with 6 µs and all CPU times", three)
	}
	if violating := median([]Scheduler{sample(7, 8), sample(5, 9), sample(6, 9)}, 9); violating.Bound != 8 {
		t.Errorf("median() with a sample of 8 of 9 bound pods = %+v, want this sample", violating)
	}
}
