package reference

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	scheduling "k8s.io/kubernetes/pkg/scheduler/testing"
)

func newReference(t *testing.T) *Reference {
	t.Helper()
	cfg, err := latest.Default()
	if err != nil {
		t.Fatal(err)
	}
	factory := informers.NewSharedInformerFactory(kubernetes.NewForConfigOrDie(&rest.Config{}), 0)
	r, err := New(t.Context(), cfg.Profiles[0], factory)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func node(name string) *v1.Node {
	return scheduling.MakeNode().Name(name).Label(v1.LabelHostname, name).
		Capacity(map[v1.ResourceName]string{v1.ResourceCPU: "4", v1.ResourceMemory: "8Gi", v1.ResourcePods: "10"}).Obj()
}

func pod(name, nodeName, cpu string) *v1.Pod {
	return scheduling.MakePod().Namespace("default").Name(name).UID(name).Node(nodeName).
		Req(map[v1.ResourceName]string{v1.ResourceCPU: cpu, v1.ResourceMemory: "1Gi"}).Obj()
}

func TestBestHasAllNodesWithTheHighestScore(t *testing.T) {
	nodes := []*v1.Node{node("a"), node("b"), node("c"), node("d")}
	pods := []*v1.Pod{pod("on-a", "a", "1"), pod("full", "d", "4")}
	got, err := newReference(t).Decide(t.Context(), pods, nodes, pod("new", "", "1"))
	if err != nil {
		t.Fatal(err)
	}
	if want := sets.New("b", "c"); !got.Best.Equal(want) || got.Feasible != 3 || got.FitError != nil {
		t.Errorf("Decide() = %+v, want the best nodes %v of 3 feasible nodes", got, want)
	}
}

func TestDecisionsAreIndependent(t *testing.T) {
	r := newReference(t)
	nodes := []*v1.Node{node("a"), node("b")}
	for busy, free := range map[string]string{"a": "b", "b": "a"} {
		got, err := r.Decide(t.Context(), []*v1.Pod{pod("old", busy, "2")}, nodes, pod("new", "", "1"))
		if err != nil {
			t.Fatal(err)
		}
		if !got.Best.Equal(sets.New(free)) {
			t.Errorf("Decide() with a pod on %s = best %v, want %s", busy, got.Best, free)
		}
	}
}

func TestPodsOfDeletedNodesAreIgnored(t *testing.T) {
	antiAffine := func(name, nodeName string) *v1.Pod {
		return scheduling.MakePod().Namespace("default").Name(name).UID(name).Node(nodeName).Label("app", "x").
			PodAntiAffinityExists("app", v1.LabelHostname, scheduling.PodAntiAffinityWithRequiredReq).Obj()
	}
	pods := []*v1.Pod{antiAffine("on-deleted", "deleted"), antiAffine("on-a", "a")}
	got, err := newReference(t).Decide(t.Context(), pods, []*v1.Node{node("a"), node("b")}, antiAffine("new", ""))
	if err != nil {
		t.Fatal(err)
	}
	if !got.Best.Equal(sets.New("b")) || got.Feasible != 1 {
		t.Errorf("Decide() = %+v, want best node b of 1 feasible node", got)
	}
}

func TestFitErrorIfNoNodeFits(t *testing.T) {
	got, err := newReference(t).Decide(t.Context(), nil, []*v1.Node{node("a"), node("b")}, pod("huge", "", "5"))
	if err != nil {
		t.Fatal(err)
	}
	if got.FitError == nil || got.Feasible != 0 || got.Best.Len() != 0 {
		t.Fatalf("Decide() = %+v, want a fit error and no nodes", got)
	}
	if want := "0/2 nodes are available: 2 Insufficient cpu."; got.FitError.Error() != want {
		t.Errorf("fit error = %q, want %q", got.FitError.Error(), want)
	}
}
