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
		"scheduler": func(o *Options) { o.Schedulers = []string{"x"} },
		"twice":     func(o *Options) { o.Schedulers = []string{clusterdir.SchedulerKube, clusterdir.SchedulerKube} },
		"none":      func(o *Options) { o.Schedulers = nil },
		"nodes":     func(o *Options) { o.Cluster.Nodes = 0 },
		"pods":      func(o *Options) { o.Pods = 0 },
		"full":      func(o *Options) { o.Cluster.Nodes, o.Pods = 10, 1100 },
		"timeout":   func(o *Options) { o.Timeout = 0 },
		"zones":     func(o *Options) { o.Cluster.Zones = 0 },
		"store":     func(o *Options) { o.Cluster.Store = "x" },
		"replicas":  func(o *Options) { o.Replicas = []int{1, 0} },
		"number":    func(o *Options) { o.Replicas = []int{2, 4, 2} },
		"nobody":    func(o *Options) { o.Replicas = nil },
		"relays":    func(o *Options) { o.Replicas, o.Relays = []int{2}, -1 },
		"argument":  func(o *Options) { o.Cluster.SchedulerArgs = []string{"v"} },
	} {
		o := DefaultOptions()
		change(&o)
		if err := o.Validate(); !errors.Is(err, usage.Err) {
			t.Errorf("with invalid options (%s), Validate returned %v, not a usage error", name, err)
		}
	}
	if o := DefaultOptions(); o.Validate() != nil {
		t.Errorf("the default options are invalid: %v", o.Validate())
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
		t.Errorf("the settings are %+v; want 7 nodes in 2 zones, dist-scheduler and mem_etcd", got)
	}
	if got.SchedulerReplicas != 4 || got.SchedulerRelays != 1 || len(got.SchedulerArgs) != 2 || len(got.SchedulerEnv) != 1 {
		t.Errorf("the settings are %+v; want 4 replicas, 1 relay, 2 scheduler arguments and 1 variable", got)
	}
}

// Nodes of node-sim are seeded with a profile, which must not choose another scheduler.
func TestProfileKeepsTheScheduler(t *testing.T) {
	o := DefaultOptions()
	o.Cluster.NodeSimulator, o.Cluster.Nodes = clusterdir.SimulatorNodeSim, 100_000
	flags, err := o.clusterFlags(contender{scheduler: clusterdir.SchedulerKube, replicas: 1})
	if err != nil {
		t.Fatal(err)
	}
	if !flags.Changed("scheduler") || flags.Lookup("profile").Value.String() != clusterdir.ProfileAuto || !o.seeds() {
		t.Errorf("the profile is %s, and the scheduler can be changed: %v", flags.Lookup("profile").Value, !flags.Changed("scheduler"))
	}
	if o.Cluster.NodeSimulator = clusterdir.SimulatorKwok; o.seeds() {
		t.Error("nodes of kwok are seeded")
	}
}

// TestEachNumberOfReplicasIsMeasured checks that there is a contender for each number of dist-scheduler
// replicas, and that a single replica has no relays.
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
		t.Errorf("the contenders are %q, want %q", all, want)
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
		t.Errorf("Run returned %v; want ErrClusterExists, and the cluster must still exist", err)
	}
}

// watchSimulator passes pods to binds as a watch would, with a clock that the test controls.
type watchSimulator struct {
	binds *binds
	now   time.Time
}

func newWatchSimulator() *watchSimulator {
	w := &watchSimulator{now: time.Unix(0, 0)}
	w.binds = newBinds("pod-", func() time.Time { return w.now })
	return w
}

// update delivers a pod with this node after a time.
func (w *watchSimulator) update(after time.Duration, name, node string) {
	w.now = w.now.Add(after)
	_ = w.binds.Update(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
		}}},
	})
}

func TestLatencyIsFromFirstSeenToBind(t *testing.T) {
	w := newWatchSimulator()
	w.update(0, "warm-1", "a")
	w.update(0, "pod-1", "")
	w.update(time.Second, "pod-2", "")
	w.update(time.Second, "pod-1", "a")
	w.update(time.Second, "pod-2", "a")
	w.update(time.Minute, "pod-2", "a") // an update of a bound pod
	count, last := w.binds.bound()
	if count != 2 || !last.Equal(time.Unix(3, 0)) {
		t.Errorf("%d pods are bound, the last at %v; want 2, the last at 3 s", count, last)
	}
	if l := w.binds.latency; l.TotalCount() != 2 || l.Min() < 1_990_000 || l.Max() > 2_010_000 {
		t.Errorf("%d latencies of %d to %d µs were recorded, want 2 of about 2 s", l.TotalCount(), l.Min(), l.Max())
	}
}

func TestOvercommittedNodesAreCounted(t *testing.T) {
	node := func(name, cpu, pods string) corev1.Node {
		return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourcePods: resource.MustParse(pods),
		}}}
	}
	nodes := []corev1.Node{node("small", "2", "10"), node("few", "9", "2")}
	w := newWatchSimulator()
	for i := range 2 {
		w.update(0, fmt.Sprintf("pod-s%d", i), "small")
		w.update(0, fmt.Sprintf("warm-f%d", i), "few")
	}
	if got := w.binds.overcommitted(nodes); got != 0 {
		t.Errorf("%d nodes overcommitted, want 0", got)
	}
	w.update(0, "pod-s2", "small")
	w.update(0, "pod-f2", "few")
	w.update(0, "pod-x", "gone")
	if got := w.binds.overcommitted(nodes); got != 3 {
		t.Errorf("%d nodes overcommitted, want 3", got)
	}
	if got := nodes[0].Status.Allocatable.Cpu().Value(); got != 2 {
		t.Errorf("overcommitted changed the node: it has %d cores, want 2", got)
	}
}

func TestErrDescribesViolations(t *testing.T) {
	r := Result{Pods: 5, Schedulers: []Scheduler{{Name: "a", Bound: 5}}}
	if err := r.Err(); err != nil {
		t.Errorf("Err of a correct result returned %v", err)
	}
	r.Schedulers = append(r.Schedulers, Scheduler{Name: "b", Bound: 4, OversubscribedNodes: 2})
	want := "b overcommitted 2 nodes, b found no node for 1 of 5 pods; repeat the run with --keep to inspect the cluster"
	if err := r.Err(); err == nil || err.Error() != want {
		t.Errorf("Err returned %v, want %q", err, want)
	}
}

func TestReportComparesSchedulersAndReplicas(t *testing.T) {
	found := Result{Nodes: 10, Pods: 100, Schedulers: []Scheduler{
		{Name: clusterdir.SchedulerDist, Replicas: 1, Bound: 100, PodsPerSecond: 20, SchedulerCPUMicrosPerPod: 500, SchedulerMemoryBytes: 1 << 20},
		{Name: clusterdir.SchedulerDist, Replicas: 4, Bound: 100, PodsPerSecond: 20, SchedulerCPUMicrosPerPod: 700},
		{Name: clusterdir.SchedulerKube, Bound: 100, PodsPerSecond: 10, SchedulerCPUMicrosPerPod: 2000, SchedulerMemoryBytes: 1 << 20},
	}}
	to := &experiment.Result{Errors: experiment.NewTally(0)}
	found.Report(to)
	if rows := to.Tables[0].Rows; len(rows) != 3 || rows[1][1] != 4 || rows[2][0] != clusterdir.SchedulerKube {
		t.Errorf("the table has the rows %v", rows)
	}
	if len(to.Ratios) != 3 || to.Ratios[0].Ratio != 2 || to.Ratios[1].Ratio != 0.25 {
		t.Errorf("the ratios are %+v; want 3, of which the first are 2 and 0.25", to.Ratios)
	}
	if len(to.Notes) != 1 || !strings.Contains(to.Notes[0], "1.40 ×") {
		t.Errorf("the notes are %q; want one with 1.40 ×", to.Notes)
	}
	if len(to.Series) != 3 || len(to.Series[0].Points) != 2 || to.Series[0].Points[1] != (experiment.Point{4, 700}) {
		t.Errorf("the series are %+v; want 3, of which the first ends with 700 µs for 4 replicas", to.Series)
	}
}

// TestMedianOfSamples checks that the result is the sample with the median CPU time, unless a sample violates
// an invariant.
func TestMedianOfSamples(t *testing.T) {
	sample := func(cpu float64, bound int) Scheduler {
		return Scheduler{Name: "dist-scheduler", Bound: bound, SchedulerCPUMicrosPerPod: cpu}
	}
	if one := median([]Scheduler{sample(5, 9)}, 9); one.SchedulerCPUMicrosPerPod != 5 || one.CPUSamples != nil {
		t.Errorf("median of one sample returned %+v", one)
	}
	three := median([]Scheduler{sample(7, 9), sample(5, 9), sample(6, 9)}, 9)
	if three.SchedulerCPUMicrosPerPod != 6 || !slices.Equal(three.CPUSamples, []float64{5, 6, 7}) {
		t.Errorf("median of three samples returned %+v", three)
	}
	if wrong := median([]Scheduler{sample(7, 8), sample(5, 9), sample(6, 9)}, 9); wrong.Bound != 8 {
		t.Errorf("median of samples of which one has an unbound pod returned %+v, not that sample", wrong)
	}
}
