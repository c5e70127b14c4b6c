package controlplane

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

func TestSteps(t *testing.T) {
	for _, c := range []struct {
		first, last int
		want        []int
	}{{10, 1000, []int{10, 100, 1000}}, {10, 250, []int{10, 100, 250}}, {10, 10, []int{10}}, {10, 4, []int{4}}} {
		if got := steps(c.first, c.last); !slices.Equal(got, c.want) {
			t.Errorf("steps(%d, %d) returned %v, want %v", c.first, c.last, got, c.want)
		}
	}
	if got := climbSteps(1000, 12_000); !slices.Equal(got, []int{1000, 2000, 5000, 10_000, 12_000}) {
		t.Errorf("climbSteps(1000, 12_000) returned %v", got)
	}
}

func TestBetween(t *testing.T) {
	for _, c := range []struct{ passed, exceeded, want int }{
		{2000, 5000, 3500}, {3500, 5000, 4300}, {4000, 5000, 0}, {100, 200, 150}, {0, 1000, 0}, {2, 5, 4},
	} {
		if got := between(c.passed, c.exceeded); got != c.want {
			t.Errorf("between(%d, %d) returned %d, want %d", c.passed, c.exceeded, got, c.want)
		}
	}
}

func TestExceededLimits(t *testing.T) {
	fine := machineShares{idle: 0.5, available: 0.5, own: 0.5}
	met, missed := experiment.Verdict{Operations: 1, Met: true}, experiment.Verdict{Name: "startup", Operations: 1, Measured: 7}
	for _, c := range []struct {
		renewed float64
		free    machineShares
		verdict experiment.Verdict
		want    []string
	}{
		{1, fine, met, nil},
		{1, fine, experiment.Verdict{Name: "never measured"}, nil},
		{0.5, fine, met, []string{"Leases"}},
		{1, machineShares{idle: 0.01, available: 0.5, own: 0.9}, met, []string{"CPU"}},
		{1, machineShares{idle: 0.01, available: 0.5, own: 0.1}, met, nil}, // other processes use the CPU
		{1, machineShares{idle: 0.5, available: 0.05, own: 0.5}, missed, []string{"memory", "objective: startup was 7 s"}},
	} {
		got := exceededLimits(c.renewed, c.free, []experiment.Verdict{c.verdict})
		if len(got) != len(c.want) {
			t.Errorf("for %+v, exceededLimits returned %v", c, got)
			continue
		}
		for i, prefix := range c.want {
			if !strings.HasPrefix(got[i], prefix) {
				t.Errorf("for %+v, exceededLimits returned %v", c, got)
			}
		}
	}
}

func TestContainerEnvironmentHasALimit(t *testing.T) {
	small, err := startWithServices(100)
	if err != nil || small == 0 {
		t.Errorf("with 100 Services, starting a program with %d bytes of environment returned %v", small, err)
	}
	large, err := startWithServices(20_000)
	if err == nil || large < 200*small {
		t.Errorf("with 20,000 Services, a program started with %d bytes of environment", large)
	}
}

func pod(name, node string, phase corev1.PodPhase, age time.Duration) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, CreationTimestamp: metav1.NewTime(time.Now().Add(-age))},
		Spec:       corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: phase},
	}
}

func TestStartupsFollowPods(t *testing.T) {
	s := newStartups("measured-")
	s.limit = 10 * time.Second
	s.requestSent("measured-1")
	changes := []*corev1.Pod{
		pod("measured-1", "", corev1.PodPending, 0), pod("other", "node", corev1.PodRunning, time.Second),
		pod("measured-1", "node", corev1.PodPending, 3*time.Second), pod("measured-2", "node", corev1.PodRunning, 20*time.Second),
		pod("measured-1", "node", corev1.PodRunning, 3*time.Second), pod("measured-1", "node", corev1.PodRunning, 60*time.Second),
	}
	for _, p := range changes {
		if err := s.Update(p); err != nil {
			t.Fatal(err)
		}
	}
	exist, bound, running := s.counts()
	if exist != 3 || bound != 3 || running != 3 {
		t.Errorf("%d pods exist, %d are bound and %d run; want 3 each", exist, bound, running)
	}
	sinceCreation, sinceRequest := s.measured()
	if sinceCreation.Count() != 2 || sinceRequest.Count() != 1 || s.late() != 1 {
		t.Errorf("%d startups were measured since the creation, %d since the request, and %d were late; want 2, 1 and 1",
			sinceCreation.Count(), sinceRequest.Count(), s.late())
	}
	if got := sinceCreation.Seconds(50); got < 2.9 || got > 4 {
		t.Errorf("the startup of the first pod took %g s, want 3 to 4", got)
	}
	// Pods that a new list does not contain have been deleted.
	if err := s.Replace([]any{changes[1]}, ""); err != nil {
		t.Fatal(err)
	}
	if exist, _, _ := s.counts(); exist != 1 {
		t.Errorf("%d pods exist after the new list, want 1", exist)
	}
}

func TestValidateOptions(t *testing.T) {
	for _, e := range Experiments() {
		if err := e.New().Validate(); err != nil {
			t.Errorf("the default options of %s are invalid: %v", e.Name, err)
		}
	}
	o := nodesAndPods.New().(*nodesAndPodsOptions)
	o.Nodes.N, o.Pods.N = 1, 111
	if o.Validate() == nil {
		t.Error("Validate accepted 111 pods for a node with room for 110")
	}
	r := restart.New().(*restartOptions)
	r.Pods.N = 50_000
	if err := r.Validate(); err != nil {
		t.Errorf("50,000 pods are refused although the number of nodes is not set: %v", err)
	}
	r.Nodes.N = 400
	if r.Validate() == nil {
		t.Error("Validate accepted 50,000 pods for 400 nodes with room for 44,000")
	}
	d := density.New().(*densityOptions)
	d.Namespaced = true
	if d.Validate() == nil {
		t.Error("Validate accepted namespaced iterations of single pods")
	}
}

// The settings of the clusters of each experiment are valid, and nodes of node-sim have the mode that was asked for.
func TestSettingsOfClusters(t *testing.T) {
	for _, e := range Experiments() {
		if err := e.New().Validate(); err != nil {
			t.Errorf("%s: the default options are invalid: %v", e.Name, err)
		}
	}
	o := tessIO.New().(*tessOptions)
	o.NodeMode = clusterdir.NodesWire
	s := o.settings(clusterdir.StoreMemEtcd)
	if s.NodeSimulator != clusterdir.SimulatorNodeSim || s.NodeMode != clusterdir.NodesWire || s.APIServers != 5 || len(s.GatewayArgs) != 1 {
		t.Errorf("the settings are %+v", s)
	}
	if o.Gateway = false; len(o.settings(clusterdir.StoreMemEtcd).GatewayArgs) > 0 {
		t.Error("a cluster without a gateway has flags of one")
	}
	if s := fullStore.New().(*fullStoreOptions).settings(clusterdir.StoreEtcd); s.Profile != fullStoreProfile || s.Store != clusterdir.StoreEtcd {
		t.Errorf("the settings are %+v", s)
	}
}

func TestInvalidNodesAreUsageErrors(t *testing.T) {
	for _, c := range []clusters{{NodeSimulator: "none"}, {NodeMode: "mixed"}, {NodeSimulator: clusterdir.SimulatorKwok, NodeMode: clusterdir.NodesWire}} {
		o := defaultClusters(experiment.Fixed(10))
		o.NodeMode = c.NodeMode
		if c.NodeSimulator != "" {
			o.NodeSimulator = c.NodeSimulator
		}
		if err := o.Validate(); !errors.Is(err, usage.Err) {
			t.Errorf("%+v: %v, want a usage error", c, err)
		}
	}
}

// Pods that fill a cluster are not counted among the others.
func TestStartupsIgnorePodsThatFillTheCluster(t *testing.T) {
	s := newStartups("")
	s.ignored = fillPrefix
	for _, name := range []string{podName(fillPrefix, 1), podName("other-", 1)} {
		if err := s.Add(pod(name, "node-1", corev1.PodRunning, time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	if exist, _, running := s.counts(); exist != 1 || running != 1 {
		t.Errorf("%d pods exist and %d run, want one", exist, running)
	}
}

func TestPartsOfAFullStore(t *testing.T) {
	o := fullStore.New().(*fullStoreOptions)
	o.Steps = 4
	if first, last := o.part(10, 1), o.part(10, 4); first != 2 || last != 10 {
		t.Errorf("the first and the last of 4 steps have %d and %d of 10", first, last)
	}
}
