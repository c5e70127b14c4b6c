package ladder

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/profile"
)

// stored returns the bytes that an API server stores for a Lease.
func stored(t *testing.T, lease *coordinationv1.Lease) []byte {
	t.Helper()
	lease.SetGroupVersionKind(coordinationv1.SchemeGroupVersion.WithKind("Lease"))
	var encoded bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(lease, &encoded); err != nil {
		t.Fatal(err)
	}
	return encoded.Bytes()
}

func TestRenewTimeOfAStoredLease(t *testing.T) {
	want := time.Unix(1_700_000_000, 123_456_000)
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "node-000001", Namespace: "kube-node-lease", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new("node-000001"), LeaseDurationSeconds: new(int32(40)), RenewTime: &metav1.MicroTime{Time: want},
		},
	}
	if got, err := renewTime(stored(t, lease)); err != nil || !got.Equal(want) {
		t.Errorf("renewTime() = %v, %v; want %v", got, err, want)
	}
	lease.Spec.RenewTime = nil
	value := stored(t, lease)
	for name, invalid := range map[string][]byte{
		"no renewTime": value, "empty": nil, "JSON": []byte(`{"kind":"Lease"}`), "cut off": value[:len(value)/2], "prefix only": []byte("k8s\x00"),
	} {
		if got, err := renewTime(invalid); err == nil {
			t.Errorf("%s: renewTime() = %v, want an error", name, got)
		}
	}
}

func TestReadinessCountsChanges(t *testing.T) {
	since := time.Unix(1000, 0)
	node := func(status corev1.ConditionStatus, changed int64) *corev1.Node {
		return &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Unix(2000, 0)},
			{Type: corev1.NodeReady, Status: status, LastTransitionTime: metav1.Unix(changed, 0)},
		}}}
	}
	var r readiness
	for _, n := range []*corev1.Node{
		node(corev1.ConditionTrue, 500), node(corev1.ConditionTrue, 1500), node(corev1.ConditionUnknown, 1500), node(corev1.ConditionUnknown, 900), {},
	} {
		r.add(n, since)
	}
	if want := (readiness{nodes: 5, ready: 2, changed: 2}); r != want {
		t.Errorf("readiness is %+v, want %+v", r, want)
	}
}

// The help lists the rungs that exist, and each profile of a rung exists.
func TestRungs(t *testing.T) {
	for _, g := range rungs {
		if !strings.Contains(ladder.Long, "\n  "+g.name+" ") {
			t.Errorf("the help does not list the rung %s", g.name)
		}
		if p, found := profile.Named(g.profile); !found || g.nodes < p.Nodes {
			t.Errorf("rung %s has the profile %s, which is for %d nodes and more", g.name, g.profile, p.Nodes)
		}
		if want, _ := profile.For(g.nodes); want.Name != g.profile {
			t.Errorf("rung %s has the profile %s, but `k1m up` chooses %s", g.name, g.profile, want.Name)
		}
	}
}

func TestSizesOfRungs(t *testing.T) {
	o := defaultOptions()
	wire := rungs[slices.IndexFunc(rungs, func(g rung) bool { return g.climbs })]
	if g := wire.sized(o, 1); g.nodes != 100_000 || g.mustNodes != 30_000 {
		t.Errorf("at medium scale the rung is %+v", g)
	}
	if g := rungs[0].sized(o, 0.1); g.nodes != 2000 || g.pods != 2000 {
		t.Errorf("at small scale the rung is %+v", g)
	}
	if g := rungs[0].sized(o, 5); g.nodes != 20_000 {
		t.Errorf("at large scale the rung is %+v", g)
	}
	o.Nodes, o.Pods, o.Interval, o.Grace = 500, 0, 3*time.Second, 20*time.Second
	g := wire.sized(o, 1)
	if g.nodes != 500 || g.mustNodes != 500 || g.pods != 0 {
		t.Errorf("with options the rung is %+v", g)
	}
	s := g.settings(o)
	if !slices.Contains(s.NodeSimArgs, "node-lease-duration-seconds=12") || s.NodeMode != clusterdir.NodesWire || s.Profile != "50k" || !slices.Contains(s.ControllerManagerArgs, "node-monitor-period=5s") {
		t.Errorf("the settings are %+v", s)
	}
}

func TestClimbEndsAtTheRung(t *testing.T) {
	for most, want := range map[int][]int{100_000: {5000, 10_000, 20_000, 30_000, 50_000, 75_000, 100_000}, 20_000: {5000, 10_000, 20_000}, 300: {300}} {
		if got := climbSteps(most); !slices.Equal(got, want) {
			t.Errorf("climbSteps(%d) = %v, want %v", most, got, want)
		}
	}
}

// holding returns a step of a rung, and an outcome that meets all objectives.
func holding() (*step, outcome) {
	o := defaultOptions()
	o.Hold.D, o.Replicas.N, o.Stopped.N = 10*time.Minute, 10, 2
	g := rungs[0]
	g.nodes, g.pods = 1000, 50
	r := &run{Run: &experiment.Run{Result: &experiment.Result{}}, options: o, tables: newTables(&experiment.Result{})}
	s := &step{run: r, rung: g, interval: 10 * time.Second, period: 5 * time.Second, grace: 50 * time.Second, hasControllers: true, hasPods: true}
	out := outcome{
		held: held{
			seconds: 600, arrived: 58_000, arrivalSeconds: 600, leastRenewed: 1000, samples: 5, readiness: readiness{nodes: 1000, ready: 1000},
			usage: experiment.Measured{Seconds: 600, CPU: map[string]time.Duration{"store": time.Second}, Resident: map[string]int64{"store": 1}, Peak: map[string]int64{"store": 1}},
		},
		kubectl:  kubectlResult{get: []float64{0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.2}, list: 3, listed: 1000, isListed: true},
		workload: workload{replicas: 10, rollout: 3, pods: 50, perSecond: 10},
		failures: failures{stopped: 2, notReady: []float64{50, 55}, ready: []float64{5, 6}},
	}
	return s, out
}

func TestARungThatHolds(t *testing.T) {
	s, o := holding()
	if !s.judge(o) {
		t.Errorf("the rung does not hold: %v", s.Result.Verdicts)
	}
	for _, v := range s.Result.Verdicts {
		if !v.Met || v.Operations == 0 || v.Must != strings.HasSuffix(v.Name, ", must") {
			t.Errorf("%v is not met, not measured, or not what its name says", v)
		}
	}
	s.addHeld(o.held)
	s.addUsers(o)
	for _, table := range []*experiment.Table{s.tables.holds, s.tables.processes, s.tables.users, s.tables.limits} {
		if len(table.Rows) == 0 {
			t.Errorf("the table %q has no rows", table.Title)
		}
	}
	if reason := s.tooMany(o.held); reason != "" {
		t.Errorf("a step that holds is refused: %s", reason)
	}
}

// Each defect alone keeps the rung from holding.
func TestARungThatDoesNotHold(t *testing.T) {
	for name, spoil := range map[string]func(*outcome){
		"ended early":               func(o *outcome) { o.seconds = 599 },
		"heartbeats missing":        func(o *outcome) { o.arrived = 54_000 },
		"no heartbeat was due":      func(o *outcome) { o.arrivalSeconds = 10 },
		"late Leases":               func(o *outcome) { o.leastRenewed = 989 },
		"no sample":                 func(o *outcome) { o.samples = 0 },
		"a node is NotReady":        func(o *outcome) { o.readiness.ready = 999 },
		"a node was NotReady":       func(o *outcome) { o.readiness.changed = 1 },
		"NotReady for controllers":  func(o *outcome) { o.mostNotReady = 1 },
		"kubectl failed":            func(o *outcome) { o.kubectl.get, o.kubectl.failed = o.kubectl.get[1:], 1 },
		"pods of the Deployment":    func(o *outcome) { o.workload.replicas = 9 },
		"failure not noticed":       func(o *outcome) { o.failures.notReady = o.failures.notReady[1:] },
		"node did not come back":    func(o *outcome) { o.failures.ready = nil },
		"nothing after the cluster": func(o *outcome) { *o = outcome{} },
	} {
		s, o := holding()
		spoil(&o)
		if s.judge(o) {
			t.Errorf("%s: the rung holds: %v", name, s.Result.Verdicts)
		}
	}
}

// What needs a component that does not run is not judged.
func TestWithoutComponents(t *testing.T) {
	s, o := holding()
	s.hasPods, o.workload = false, workload{}
	if !s.judge(o) {
		t.Errorf("without a scheduler the rung does not hold: %v", s.Result.Verdicts)
	}
	s, o = holding()
	s.hasControllers, s.hasPods, o.workload, o.failures = false, false, workload{}, failures{}
	if !s.judge(o) {
		t.Errorf("without controllers the rung does not hold: %v", s.Result.Verdicts)
	}
}

func TestBoundsAreSorted(t *testing.T) {
	s, o := holding()
	s.Result.Machine.Cores = 2
	o.idle, o.available, o.passes, o.passSeconds = 0.5, 0.9, 10, 40
	bounds := s.bounds(o.held)
	if bounds[0].name != "kube-controller-manager's pass over all nodes" || bounds[0].used != 0.8 {
		t.Errorf("the first bound is %+v, want a pass of 4 s of 5 s", bounds[0])
	}
	if !slices.IsSortedFunc(bounds, func(a, b bound) int { return int(1000 * (b.used - a.used)) }) {
		t.Errorf("bounds are not sorted: %+v", bounds)
	}
}
