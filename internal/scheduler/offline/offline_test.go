package offline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	scheduling "k8s.io/kubernetes/pkg/scheduler/testing"
	"k8s.io/utils/ptr"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/clusterfile"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest/generate"
)

// objectsOf returns a cluster with these objects.
func objectsOf(t *testing.T, all ...runtime.Object) *clusterfile.Objects {
	t.Helper()
	objects := clusterfile.New()
	for _, object := range all {
		if err := objects.Add(object, "test"); err != nil {
			t.Fatal(err)
		}
	}
	return objects
}

// defaults returns the default configuration.
func defaults(t *testing.T) *config.KubeSchedulerConfiguration {
	t.Helper()
	cfg, err := latest.Default()
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// newCluster returns a cluster in memory with the default configuration.
func newCluster(t *testing.T, objects *clusterfile.Objects) *Cluster {
	t.Helper()
	c, err := New(t.Context(), Options{Objects: objects, Config: defaults(t)})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// decide adds a pod and decides about it. It fails if the decision deviates.
func decide(t *testing.T, c *Cluster, pod *v1.Pod) *Decision {
	t.Helper()
	if err := c.AddPod(pod); err != nil {
		t.Fatal(err)
	}
	d, err := c.Decide(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	for _, deviation := range d.Deviations {
		t.Errorf("pod %s: deviation: %s", pod.Name, deviation)
	}
	return d
}

// place places a pod on one of the best nodes.
func place(t *testing.T, c *Cluster, d *Decision, node string) (placed *v1.Pod, reason string) {
	t.Helper()
	placed, reason, err := c.Place(t.Context(), d, node)
	if err != nil {
		t.Fatal(err)
	}
	return placed, reason
}

func node(name, cpu string) *v1.Node {
	return scheduling.MakeNode().Name(name).Label(v1.LabelHostname, name).
		Capacity(map[v1.ResourceName]string{v1.ResourceCPU: cpu, v1.ResourceMemory: "8Gi", v1.ResourcePods: "10"}).Obj()
}

func pod(name, cpu string) *v1.Pod {
	return scheduling.MakePod().Namespace("default").Name(name).UID(name).SchedulerName(v1.DefaultSchedulerName).
		Req(map[v1.ResourceName]string{v1.ResourceCPU: cpu}).Obj()
}

// TestRandomClusters places random pods in random clusters, one after the other. No decision may deviate from that of
// kube-scheduler's plugins, no matter which of the best nodes each pod gets, and neither may preemption.
func TestRandomClusters(t *testing.T) {
	seed := schedtest.Seed()
	t.Logf("to repeat this test: -oracle.seed %d", seed)
	for i := range uint64(8) {
		t.Run(fmt.Sprint(i), func(t *testing.T) { randomCluster(t, seed+i) })
	}
}

func randomCluster(t *testing.T, seed uint64) {
	g := generate.NewCluster(seed)
	objects := objectsOf(t, generate.Objects()...)
	for _, name := range generate.Namespaces {
		if err := objects.Add(generate.Namespace(name, name != "default"), "test"); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 + g.Rand.IntN(20) {
		n := g.Node()
		g.Nodes[n.Name] = n
		if err := objects.Add(n, "test"); err != nil {
			t.Fatal(err)
		}
	}
	c := newCluster(t, objects)
	placed, preempted, byIndex := 0, 0, 0
	for range 120 {
		next := g.Pod()
		next.Spec.SchedulerName, next.Status.NominatedNodeName = v1.DefaultSchedulerName, ""
		d := decide(t, c, next)
		if t.Failed() {
			t.Fatalf("seed %d, after %d pods", seed, placed)
		}
		if d.ByIndex {
			byIndex++
		}
		if d.Err != nil {
			p, err := c.Preempt(t.Context(), d)
			if err != nil || len(p.Deviations) > 0 {
				t.Fatalf("seed %d: Preempt() = %v, %v", seed, p, err)
			}
			if p.Node != "" && g.Chance(50) {
				for _, victim := range p.Victims {
					if err := c.Evict(victim); err != nil {
						t.Fatal(err)
					}
				}
				preempted++
			}
			continue
		}
		if _, reason := place(t, c, d, generate.Pick(g.Rand, d.Stock.Best)); reason == "" {
			placed++
		}
	}
	t.Logf("%d pods placed, %d preemptions, %d decisions by the index", placed, preempted, byIndex)
	if placed < 10 || byIndex < 10 {
		t.Errorf("%d pods placed and %d decisions by the index, want at least 10", placed, byIndex)
	}
}

// TestScoresHaveAllParts checks raw and normalized scores, weights and totals.
func TestScoresHaveAllParts(t *testing.T) {
	c := newCluster(t, objectsOf(t, node("a", "4"), node("b", "2"), node("c", "1")))
	d := decide(t, c, pod("p", "1"))
	if !d.ByIndex || !d.ScoresCompared || len(d.Stock.Feasible) != 3 || d.Stock.Feasible[0].Node != d.Stock.Best[0] {
		t.Fatalf("Decide() = %+v, want three nodes, ranked by the index", d)
	}
	for _, n := range d.Stock.Feasible {
		total := int64(0)
		for _, score := range n.Plugins {
			total += score.Normalized * score.Weight
			if score.Plugin == "TaintToleration" && (score.Weight != 3 || score.Normalized != 100 || score.Raw != 0) {
				t.Errorf("TaintToleration = %+v, want weight 3 and the normalized score 100", score)
			}
		}
		if total != n.Total || len(n.Plugins) < 3 {
			t.Errorf("node %s: the scores %+v have the sum %d, want the total %d", n.Node, n.Plugins, total, n.Total)
		}
	}
}

// TestAllRejectionsOfANode checks that a node that several plugins reject has all their reasons.
func TestAllRejectionsOfANode(t *testing.T) {
	bad := node("bad", "1")
	bad.Spec.Taints = []v1.Taint{{Key: "gpu", Effect: v1.TaintEffectNoSchedule}}
	c := newCluster(t, objectsOf(t, node("good", "4"), bad))
	p := pod("p", "2")
	p.Spec.NodeSelector = map[string]string{v1.LabelHostname: "good"}
	d := decide(t, c, p)
	statuses, err := c.Rejections(t.Context(), d, "bad")
	if err != nil {
		t.Fatal(err)
	}
	var plugins []string
	for _, status := range statuses {
		plugins = append(plugins, status.Plugin())
	}
	slices.Sort(plugins)
	if want := []string{"NodeAffinity", "NodeResourcesFit", "TaintToleration"}; !slices.Equal(plugins, want) {
		t.Errorf("Rejections() has the plugins %v, want %v", plugins, want)
	}
	if statuses, err := c.Rejections(t.Context(), d, "good"); err != nil || len(statuses) > 0 {
		t.Errorf("Rejections() of a node that fits = %v, %v", statuses, err)
	}
}

// TestPreemptionEvictsTheCheapest evicts the pod of lowest priority, and the pod then fits there.
func TestPreemptionEvictsTheCheapest(t *testing.T) {
	running := func(name, on string, priority int32) *v1.Pod {
		p := pod(name, "3")
		p.Spec.NodeName, p.Spec.Priority, p.Status.StartTime = on, ptr.To(priority), &metav1.Time{}
		return p
	}
	c := newCluster(t, objectsOf(t, node("a", "4"), node("b", "4"), running("costly", "a", 5), running("cheap", "b", 1)))
	urgent := pod("urgent", "3")
	urgent.Spec.Priority = ptr.To[int32](10)
	d := decide(t, c, urgent)
	p, err := c.Preempt(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	if p.Node != "b" || len(p.Victims) != 1 || p.Victims[0].Name != "cheap" || p.Candidates != 2 || len(p.Deviations) > 0 {
		t.Fatalf("Preempt() = %+v, want node b without the pod cheap", p)
	}
	if err := c.Evict(p.Victims[0]); err != nil {
		t.Fatal(err)
	}
	nominated, err := c.Nominate(urgent, "b")
	if err != nil {
		t.Fatal(err)
	}
	// While the pod is nominated, another one must leave room for it.
	if d := decide(t, c, pod("other", "3")); d.Err == nil {
		t.Errorf("pod other is placed on %s, which has room only for the nominated pod", d.Node)
	}
	again, err := c.Decide(t.Context(), nominated)
	if err != nil || again.Node != "b" {
		t.Fatalf("Decide() = %+v, %v, want node b", again, err)
	}
	if _, reason := place(t, c, again, "b"); reason != "" {
		t.Errorf("Place() refuses: %s", reason)
	}
	never := pod("never", "3")
	never.Spec.Priority, never.Spec.PreemptionPolicy = ptr.To[int32](100), ptr.To(v1.PreemptNever)
	if p, err := c.Preempt(t.Context(), decide(t, c, never)); err != nil || p.Node != "" || !strings.Contains(p.Reason, "preemptionPolicy=Never") {
		t.Errorf("Preempt() of a pod that must not preempt = %+v, %v", p, err)
	}
}

// TestEvictionsSpendBudgets evicts two of three pods that a budget with one allowed disruption protects. The second eviction
// violates the budget, and pods that did not count for the budget leave it as it is.
func TestEvictionsSpendBudgets(t *testing.T) {
	running := func(name, on string) *v1.Pod {
		p := pod(name, "3")
		p.Labels = map[string]string{"app": "web"}
		p.Spec.NodeName, p.Spec.Priority, p.Status.StartTime = on, ptr.To[int32](1), &metav1.Time{}
		return p
	}
	unready := running("unready", "a")
	unready.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionFalse}}
	other := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "other"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}},
		Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 1},
	}
	budget := other.DeepCopy()
	budget.Name, budget.Spec.Selector.MatchLabels["app"] = "web", "web"
	c := newCluster(t, objectsOf(t, node("a", "4"), node("b", "4"), node("c", "4"), budget, other, unready, running("first", "b"), running("second", "c")))
	evict := func(uid types.UID) {
		if err := c.Evict(c.pods[uid]); err != nil {
			t.Fatal(err)
		}
	}
	allowed := func(step string, want int32) {
		for _, s := range c.sides() {
			for name, want := range map[string]int32{"web": want, "other": 1} {
				got, err := s.informers.Policy().V1().PodDisruptionBudgets().Lister().PodDisruptionBudgets("default").Get(name)
				if err != nil || got.Status.DisruptionsAllowed != want {
					t.Errorf("%s: %s has the budget %s of %v (%v), want %d allowed disruptions", step, s.name, name, got, err, want)
				}
			}
		}
	}
	evict("unready")
	allowed("a pod that was not ready", 1)
	placed := pod("placed", "3")
	placed.Labels = map[string]string{"app": "web"}
	if _, reason := place(t, c, decide(t, c, placed), "a"); reason != "" {
		t.Fatalf("Place() refuses: %s", reason)
	}
	evict("placed")
	allowed("a pod that was placed here", 1)
	evict("first")
	allowed("the first pod", 0)
	filler := pod("filler", "3")
	filler.Spec.Priority = ptr.To[int32](10)
	for _, on := range []string{"a", "b"} {
		next := filler.DeepCopy()
		next.Name, next.UID = "filler-"+on, types.UID("filler-"+on)
		if _, reason := place(t, c, decide(t, c, next), on); reason != "" {
			t.Fatalf("Place() refuses: %s", reason)
		}
	}
	p, err := c.Preempt(t.Context(), decide(t, c, filler))
	if err != nil || p.Node != "c" || p.Violations != 1 {
		t.Errorf("Preempt() = %+v, %v, want node c with one violation", p, err)
	}
	evict("second")
	allowed("the second pod", 0)
}

// devices returns a device class, and a node with two devices.
func devices(on string) []runtime.Object {
	return []runtime.Object{
		&resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}},
		&resourcev1.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: on},
			Spec: resourcev1.ResourceSliceSpec{
				Driver: "gpu.example.com", NodeName: ptr.To(on), Pool: resourcev1.ResourcePool{Name: on, ResourceSliceCount: 1},
				Devices: []resourcev1.Device{{Name: "0"}, {Name: "1"}},
			},
		},
	}
}

func claim(name string) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("claim-" + name)},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1},
		}}}},
	}
}

// TestClaimsAreAllocated places pods that claim devices: pods may share a claim, and a node has only so many devices.
func TestClaimsAreAllocated(t *testing.T) {
	all := append(devices("a"), node("a", "4"), node("b", "4"))
	for _, name := range []string{"one", "two", "three"} {
		all = append(all, claim(name))
	}
	c := newCluster(t, objectsOf(t, all...))
	withClaim := func(name, claim string) *v1.Pod {
		p := pod(name, "1")
		p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To(claim)}}
		p.Spec.Containers[0].Resources.Claims = []v1.ResourceClaim{{Name: "gpu"}}
		return p
	}
	var last *v1.Pod
	for name, claim := range map[string]string{"first": "one", "shares": "one", "second": "two"} {
		d := decide(t, c, withClaim(name, claim))
		if d.Err != nil || d.Node != "a" {
			t.Fatalf("pod %s: Decide() = %s, %v, want node a", name, d.Node, d.Err)
		}
		placed, reason := place(t, c, d, "a")
		if reason != "" {
			t.Fatalf("pod %s: Place() refuses: %s", name, reason)
		}
		if claim == "two" {
			last = placed
		}
	}
	third := withClaim("third", "three")
	if d := decide(t, c, third); d.Err == nil {
		t.Fatalf("pod third gets node %s, although both devices are in use", d.Node)
	}
	if err := c.Evict(last); err != nil {
		t.Fatal(err)
	}
	if d, err := c.Decide(t.Context(), third); err != nil || d.Node != "a" || len(d.Deviations) > 0 {
		t.Errorf("after the eviction of a pod with a device, Decide() = %+v, %v, want node a", d, err)
	}
}

// TestNothingCanBeWritten checks that the clients of the schedulers refuse requests.
func TestNothingCanBeWritten(t *testing.T) {
	c := newCluster(t, objectsOf(t, node("a", "4")))
	for _, s := range c.sides() {
		err := s.framework(v1.DefaultSchedulerName).ClientSet().CoreV1().Pods("default").Delete(t.Context(), "p", metav1.DeleteOptions{})
		if !errors.Is(err, ErrNoCluster) {
			t.Errorf("%s: a request returns %v, want %v", s.name, err, ErrNoCluster)
		}
	}
}

// TestWrongClustersAreErrors checks the errors for pods of other schedulers, equal UIDs, extenders and sampling.
func TestWrongClustersAreErrors(t *testing.T) {
	c := newCluster(t, objectsOf(t, node("a", "4")))
	other := pod("p", "1")
	other.Spec.SchedulerName = "mine"
	if err := c.AddPod(other); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Decide(t.Context(), other); err == nil || !strings.Contains(err.Error(), `the scheduler "mine"`) {
		t.Errorf("Decide() of a pod of another scheduler = error %v", err)
	}
	twin := pod("twin", "1")
	twin.UID = other.UID
	if err := c.AddPod(twin); err == nil {
		t.Error("AddPod() accepts two pods with one UID")
	}
	cfg := defaults(t)
	cfg.Extenders = []config.Extender{{URLPrefix: "http://127.0.0.1:1"}}
	if _, err := New(t.Context(), Options{Objects: clusterfile.New(), Config: cfg}); err == nil || !strings.Contains(err.Error(), "extenders") {
		t.Errorf("New() with an extender = error %v", err)
	}
	cfg = defaults(t)
	cfg.PercentageOfNodesToScore = ptr.To[int32](5)
	lost := pod("lost", "1")
	lost.Spec.NodeName = "gone"
	c, err := New(t.Context(), Options{Objects: objectsOf(t, node("a", "4"), lost), Config: cfg})
	if err != nil || len(c.Notes) != 2 {
		t.Errorf("New() = notes %v, error %v, want notes about sampling and about the missing node", c.Notes, err)
	}
}

// TestGatedPodsAreHeldBack checks what the queue would hold back.
func TestGatedPodsAreHeldBack(t *testing.T) {
	c := newCluster(t, objectsOf(t, node("a", "4")))
	gated := pod("p", "1")
	gated.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "example.com/quota"}}
	if reason := c.Held(t.Context(), gated); !strings.Contains(reason, "example.com/quota") {
		t.Errorf("Held() = %q, want the gate", reason)
	}
	if reason := c.Held(t.Context(), pod("q", "1")); reason != "" {
		t.Errorf("Held() of a pod without gates = %q", reason)
	}
}

// evenNodes is an out-of-tree filter plugin that panics for pods with the label "panic".
type evenNodes struct{}

func (evenNodes) Name() string { return "EvenNodes" }

func (evenNodes) Filter(_ context.Context, _ fwk.CycleState, pod *v1.Pod, info fwk.NodeInfo) *fwk.Status {
	if pod.Labels["panic"] != "" {
		panic("panic of a plugin")
	}
	if strings.HasSuffix(info.Node().Name, "1") {
		return fwk.NewStatus(fwk.Unschedulable, "node is odd")
	}
	return nil
}

// TestOutOfTreePlugins checks that plugins of a program take part, and that their panics are errors.
func TestOutOfTreePlugins(t *testing.T) {
	cfg := defaults(t)
	cfg.Profiles[0].Plugins.Filter.Enabled = append(cfg.Profiles[0].Plugins.Filter.Enabled, config.Plugin{Name: "EvenNodes"})
	registry := frameworkruntime.Registry{"EvenNodes": func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return evenNodes{}, nil }}
	c, err := New(t.Context(), Options{Objects: objectsOf(t, node("node-0", "4"), node("node-1", "8")), Config: cfg, Plugins: registry})
	if err != nil {
		t.Fatal(err)
	}
	if d := decide(t, c, pod("p", "1")); d.Node != "node-0" || d.Stock.FitError.Diagnosis.NodeToStatus.Get("node-1").Plugin() != "EvenNodes" {
		t.Errorf("Decide() = %+v, want node-0, because the plugin rejects node-1", d)
	}
	bad := pod("bad", "1")
	bad.Labels = map[string]string{"panic": "yes"}
	if err := c.AddPod(bad); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Decide(t.Context(), bad); err == nil || !strings.Contains(err.Error(), "panic of a plugin") {
		t.Errorf("Decide() = error %v, want the panic of the plugin", err)
	}
}
