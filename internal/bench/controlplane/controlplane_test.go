package controlplane

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
)

func TestStepsGrowUpToLast(t *testing.T) {
	for _, c := range []struct {
		first, last int
		want        []int
	}{{10, 1000, []int{10, 100, 1000}}, {10, 250, []int{10, 100, 250}}, {10, 10, []int{10}}, {10, 4, []int{4}}} {
		if got := steps(c.first, c.last); !slices.Equal(got, c.want) {
			t.Errorf("steps(%d, %d) = %v, want %v", c.first, c.last, got, c.want)
		}
	}
	want := []int{1000, 2000, 5000, 10_000, 12_000}
	if got := climbSteps(1000, 12_000); !slices.Equal(got, want) {
		t.Errorf("climbSteps(1000, 12000) = %v, want %v", got, want)
	}
}

// TestNextSizeBetweenPassedAndExceeded checks which size is tried between one that passed and one
// that exceeded a limit; 0 means that no further size is tried.
func TestNextSizeBetweenPassedAndExceeded(t *testing.T) {
	for _, c := range []struct{ passed, exceeded, want int }{
		{2000, 5000, 3500}, {3500, 5000, 4300}, {4000, 5000, 0}, {100, 200, 150}, {0, 1000, 0}, {2, 5, 4},
	} {
		if got := between(c.passed, c.exceeded); got != c.want {
			t.Errorf("between(%d, %d) = %d, want %d", c.passed, c.exceeded, got, c.want)
		}
	}
}

func TestExceededLimitsAreNamed(t *testing.T) {
	enough := machineShares{idle: 0.5, available: 0.5, own: 0.5}
	met, missed := experiment.Verdict{Of: 1, Met: true}, experiment.Verdict{Name: "startup", Of: 1, Measured: 7}
	for _, c := range []struct {
		renewed float64
		free    machineShares
		verdict experiment.Verdict
		want    []string
	}{
		{1, enough, met, nil},
		{1, enough, experiment.Verdict{Name: "never measured"}, nil},
		{0.5, enough, met, []string{"Leases"}},
		{1, machineShares{idle: 0.01, available: 0.5, own: 0.9}, met, []string{"CPU"}},
		{1, machineShares{idle: 0.01, available: 0.5, own: 0.1}, met, nil}, // other processes use the CPU
		{1, machineShares{idle: 0.5, available: 0.05, own: 0.5}, missed, []string{"memory", "objective: startup was 7 s"}},
	} {
		got := exceededLimits(c.renewed, c.free, []experiment.Verdict{c.verdict})
		if len(got) != len(c.want) {
			t.Errorf("exceededLimits() with %+v = %q, want %d limits", c, got, len(c.want))
			continue
		}
		for i, prefix := range c.want {
			if !strings.HasPrefix(got[i], prefix) {
				t.Errorf("exceededLimits()[%d] with %+v = %q, want it to start with %q", i, c, got[i], prefix)
			}
		}
	}
}

// TestEnvironmentOfContainerIsLimited starts a program with the environment variables of Services,
// as kubelet does. The kernel refuses to start it with too many.
func TestEnvironmentOfContainerIsLimited(t *testing.T) {
	small, err := startWith(100)
	if err != nil || small == 0 {
		t.Errorf("startWith(100) = %d bytes, %v, want more than 0, nil", small, err)
	}
	large, err := startWith(20_000)
	if err == nil || large < 200*small {
		t.Errorf("startWith(20000) = %d bytes, %v, want at least %d and an error", large, err, 200*small)
	}
}

// pod returns a pod that was created some time ago.
func pod(name, node string, phase corev1.PodPhase, age time.Duration) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, CreationTimestamp: metav1.NewTime(time.Now().Add(-age))},
		Spec:       corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: phase},
	}
}

// TestStartupsAreMeasured sends changes of pods. A startup that takes longer than the limit is
// late. The time since the request is measured only for pods whose request is known.
func TestStartupsAreMeasured(t *testing.T) {
	s := newStartups("measured-")
	s.limit = 10 * time.Second
	s.sending("measured-1")
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
		t.Errorf("counts() = %d pods exist, %d are bound, %d run, want 3 each", exist, bound, running)
	}
	sinceCreation, sinceRequest := s.measured()
	if sinceCreation.Count() != 2 || sinceRequest.Count() != 1 || s.late() != 1 {
		t.Errorf("%d startups since creation, %d since the request, %d late, want 2, 1 and 1", sinceCreation.Count(), sinceRequest.Count(), s.late())
	}
	if got := sinceCreation.Seconds(50); got < 2.9 || got > 4 {
		t.Errorf("the first startup took %g s, want about 3 s", got)
	}
	// Pods that are not in a new list have been deleted.
	if err := s.Replace([]any{changes[1]}, ""); err != nil {
		t.Fatal(err)
	}
	if exist, _, _ := s.counts(); exist != 1 {
		t.Errorf("counts() after a list with one pod = %d pods exist, want 1", exist)
	}
}

func TestInvalidOptionsAreUsageErrors(t *testing.T) {
	for _, e := range Experiments() {
		if err := e.New().Validate(); err != nil {
			t.Errorf("Validate() of the default options of %s = %v, want nil", e.Name, err)
		}
	}
	o := nodesAndPods.New().(*nodesAndPodsOptions)
	o.Nodes.N, o.Pods.N = 1, 111
	if o.Validate() == nil {
		t.Error("Validate() of 111 pods on a node with room for 110 succeeded, want an error")
	}
	d := density.New().(*densityOptions)
	d.Namespaced = true
	if d.Validate() == nil {
		t.Error("Validate() of namespaced iterations of single pods succeeded, want an error")
	}
}
