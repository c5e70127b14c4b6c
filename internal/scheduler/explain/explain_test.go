package explain

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	scheduling "k8s.io/kubernetes/pkg/scheduler/testing"
	"k8s.io/utils/ptr"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/clusterfile"
)

func node(name, cpu string) *v1.Node {
	return scheduling.MakeNode().Name(name).Label(v1.LabelHostname, name).
		Capacity(map[v1.ResourceName]string{v1.ResourceCPU: cpu, v1.ResourceMemory: "8Gi", v1.ResourcePods: "10"}).Obj()
}

func pod(name, on, cpu string, priority int32) *v1.Pod {
	return scheduling.MakePod().Namespace("default").Name(name).UID(name).SchedulerName(v1.DefaultSchedulerName).Priority(priority).Node(on).
		StartTime(metav1.Now()).Req(map[v1.ResourceName]string{v1.ResourceCPU: cpu}).Obj()
}

// explain explains a pod of a cluster.
func explain(t *testing.T, name, node string, cluster ...runtime.Object) *Explanation {
	t.Helper()
	cfg, err := latest.Default()
	if err != nil {
		t.Fatal(err)
	}
	objects := clusterfile.New()
	for _, object := range cluster {
		if err := objects.Add(object, "test"); err != nil {
			t.Fatal(err)
		}
	}
	e, err := Explain(t.Context(), Options{Pod: name, Node: node, Objects: objects, Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	for _, deviation := range e.Deviations {
		t.Error(deviation)
	}
	return e
}

// TestBoundPodDoesNotCount explains a pod that fills its node, which is the best one without the pod.
func TestBoundPodDoesNotCount(t *testing.T) {
	e := explain(t, "p", "small", node("big", "8"), node("small", "4"), pod("p", "big", "3", 0))
	if e.BoundTo != "big" || e.Fitting != 2 || !slices.Equal(e.BestNodes, []string{"big"}) || e.Search != "index" || !e.ScoresCompared {
		t.Errorf("Explain() = %+v, want that node big is the best of two", e)
	}
	if e.Node.Verdict != Outdone || e.Node.BestNode != "big" || e.Node.Behind <= 0 {
		t.Errorf("the answer for node small is %+v, want that node big is ahead", e.Node)
	}
	sum := int64(0)
	for _, difference := range e.Node.Differences {
		sum += difference.Points
	}
	if sum != e.Node.Behind {
		t.Errorf("the differences %+v have the sum %d, want %d", e.Node.Differences, sum, e.Node.Behind)
	}
}

// TestNominatedPodStaysNominated explains a pod that waits for the end of its victims: only its node is evaluated.
func TestNominatedPodStaysNominated(t *testing.T) {
	waiting := pod("p", "", "1", 5)
	waiting.Status.NominatedNodeName = "small"
	e := explain(t, "p", "", node("big", "8"), node("small", "4"), waiting)
	if e.NominatedTo != "small" || !slices.Equal(e.BestNodes, []string{"small"}) || e.Fitting != 1 {
		t.Errorf("Explain() = %+v, want the nominated node", e)
	}
}

// TestUnschedulablePodHasVictims explains a pod that fits only if another one is evicted.
func TestUnschedulablePodHasVictims(t *testing.T) {
	tainted := node("tainted", "8")
	tainted.Spec.Taints = []v1.Taint{{Key: "gpu", Effect: v1.TaintEffectNoSchedule}}
	e := explain(t, "default/urgent", "tainted", node("a", "4"), tainted, pod("low", "a", "3", 1), pod("urgent", "", "3", 9))
	if e.ChosenNode != "" || len(e.Rejections) != 2 || e.Preemption == nil || e.Preemption.Node != "a" || !slices.Equal(e.Preemption.Victims, []string{"default/low"}) {
		t.Errorf("Explain() = %+v, preemption %+v, want that pod low is evicted", e, e.Preemption)
	}
	for _, r := range e.Rejections {
		if r.Resolvable != (r.Plugin == "NodeResourcesFit") {
			t.Errorf("the rejection %+v is resolvable: %t", r, r.Resolvable)
		}
	}
	if e.Node.Verdict != Rejected || len(e.Node.Rejections) != 1 || e.Node.Rejections[0].Plugin != "TaintToleration" {
		t.Errorf("the answer for node tainted is %+v", e.Node)
	}
	var table bytes.Buffer
	if err := e.Print(&table); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"unschedulable: 0/2 nodes are available", "Preemption: on a (the best of 1 nodes), evicting default/low", "Node tainted does not fit."} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, table.String())
		}
	}
}

// TestReasonOfTheFullScan explains a pod that the index does not rank.
func TestReasonOfTheFullScan(t *testing.T) {
	p := pod("p", "", "1", 0)
	p.Spec.Volumes = []v1.Volume{{Name: "d", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "none"}}}}
	p.Spec.PreemptionPolicy = ptr.To(v1.PreemptNever)
	e := explain(t, "p", "", node("a", "4"), p)
	if e.Message == "" || !strings.Contains(e.Message, `"none" not found`) || e.Preemption.Reason == "" {
		t.Errorf("Explain() = %+v, want that the claim does not exist", e)
	}
	selected := pod("q", "", "1", 0)
	selected.Spec.NodeSelector = map[string]string{v1.LabelHostname: "a"}
	if e := explain(t, "q", "", node("a", "4"), node("b", "4"), selected); len(e.BestNodes) != 1 || e.Rejections[0].Nodes[0] != "b" {
		t.Errorf("Explain() = %+v, want node a", e)
	}
}
