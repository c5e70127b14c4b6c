package simulate

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	scheduling "k8s.io/kubernetes/pkg/scheduler/testing"
	"k8s.io/utils/ptr"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/clusterfile"
)

func node(name, zone string) *v1.Node {
	return scheduling.MakeNode().Name(name).Label(v1.LabelHostname, name).Label(v1.LabelTopologyZone, zone).
		Capacity(map[v1.ResourceName]string{v1.ResourceCPU: "4", v1.ResourceMemory: "8Gi", v1.ResourcePods: "10"}).Obj()
}

func pod(name, cpu string, priority int32) *v1.Pod {
	return scheduling.MakePod().Namespace("default").Name(name).UID(name).SchedulerName(v1.DefaultSchedulerName).Priority(priority).
		StartTime(metav1.Now()).Req(map[v1.ResourceName]string{v1.ResourceCPU: cpu}).Obj()
}

// simulate runs a simulation of pods in a cluster.
func simulate(t *testing.T, cluster []runtime.Object, order string, pods ...*v1.Pod) *Report {
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
	report, err := Run(t.Context(), Options{Objects: objects, Pods: pods, Config: cfg, Seed: 1, Order: order})
	if err != nil {
		t.Fatal(err)
	}
	for _, deviation := range report.Deviations {
		t.Error(deviation)
	}
	return report
}

// states returns the state and the node of each pod.
func states(r *Report) string {
	var all []string
	for _, pod := range r.Pods {
		all = append(all, strings.TrimSpace(strings.TrimPrefix(pod.Pod, "default/")+" "+pod.State+" "+pod.Node))
	}
	return strings.Join(all, "; ")
}

// TestPodsThatDoNotFitAreTriedAgain places a pod that must be beside another one, which comes later.
func TestPodsThatDoNotFitAreTriedAgain(t *testing.T) {
	first := scheduling.MakePod().Namespace("default").Name("first").UID("first").SchedulerName(v1.DefaultSchedulerName).
		PodAffinityExists("leader", v1.LabelHostname, scheduling.PodAffinityWithRequiredReq).Obj()
	leader := pod("leader", "1", 0)
	leader.Labels = map[string]string{"leader": "yes"}
	leader.Spec.NodeSelector = map[string]string{v1.LabelHostname: "b"}
	r := simulate(t, []runtime.Object{node("a", "x"), node("b", "y")}, ByFile, first, leader)
	if got, want := states(r), "first placed b; leader placed b"; got != want {
		t.Errorf("the result is %q, want %q", got, want)
	}
	if r.Search.Decisions != 3 || r.Search.Equal != 3 {
		t.Errorf("the decisions are %+v, want 3 equal ones", r.Search)
	}
}

// TestOrderOfPods places pods by priority, or in the order of the file, in which a later pod evicts an earlier one.
func TestOrderOfPods(t *testing.T) {
	for order, want := range map[string]string{
		ByQueue: "urgent placed a; low unschedulable",
		ByFile:  "low preempted a; urgent placed a",
	} {
		r := simulate(t, []runtime.Object{node("a", "x")}, order, pod("low", "3", 1), pod("urgent", "3", 5))
		if got := states(r); got != want {
			t.Errorf("order %s: the result is %q, want %q", order, got, want)
		}
		if preempted := r.Counts.Preempted; (order == ByFile) != (preempted == 1 && len(r.Preemptions) == 1 && r.Counts.Evicted == 0) {
			t.Errorf("order %s: the counts are %+v", order, r.Counts)
		}
	}
}

// TestSumsOfResources checks the requests before and after, of the cluster, by zone and by node.
func TestSumsOfResources(t *testing.T) {
	running := pod("running", "3", 0)
	running.Spec.NodeName = "a"
	urgent := pod("urgent", "4", 9)
	urgent.Spec.NodeSelector = map[string]string{v1.LabelTopologyZone: "x"}
	r := simulate(t, []runtime.Object{node("a", "x"), node("b", "y"), node("c", "y"), running}, ByQueue, urgent, pod("plain", "1", 0))
	if r.Counts.Evicted != 1 || r.Counts.Placed != 2 || len(r.Preemptions) != 1 || r.Preemptions[0].Victims[0] != "default/running" {
		t.Fatalf("the result is %+v, %+v, want that pod urgent evicts pod running", r.Counts, r.Preemptions)
	}
	if cpu := r.Resources[0]; cpu != (Usage{"cpu", 12000, 3000, 5000}) {
		t.Errorf("the sums of the cluster are %+v", cpu)
	}
	if len(r.Zones) != 2 || r.Zones[0].Resources[0] != (Usage{"cpu", 4000, 3000, 4000}) || r.Zones[1].Nodes != 2 || r.Zones[1].Placed != 1 {
		t.Errorf("the zones are %+v", r.Zones)
	}
	if len(r.Nodes) != 2 || r.Nodes[0].Placed != 1 || r.Nodes[0].Evicted != 1 || r.Nodes[1].Evicted != 0 {
		t.Errorf("the nodes are %+v", r.Nodes)
	}
}

// TestVolumesAreReserved places two pods that each need the only volume: the second one does not fit.
func TestVolumesAreReserved(t *testing.T) {
	const storage = "local"
	size := v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	objects := []runtime.Object{
		node("a", "x"), node("b", "y"),
		&storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: storage}, Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
		},
		&v1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "disk"}, Status: v1.PersistentVolumeStatus{Phase: v1.VolumeAvailable},
			Spec: v1.PersistentVolumeSpec{
				Capacity: size, AccessModes: modes, StorageClassName: storage,
				NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
					MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{"b"}}},
				}}}},
			},
		},
	}
	var pods []*v1.Pod
	for _, name := range []string{"one", "two"} {
		objects = append(objects, &v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("claim-" + name)},
			Spec:       v1.PersistentVolumeClaimSpec{AccessModes: modes, StorageClassName: ptr.To(storage), Resources: v1.VolumeResourceRequirements{Requests: size}},
		})
		p := pod(name, "1", 0)
		p.Spec.Volumes = []v1.Volume{{Name: "d", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}}
		pods = append(pods, p)
	}
	r := simulate(t, objects, ByFile, pods...)
	if got, want := states(r), "one placed b; two unschedulable"; got != want {
		t.Errorf("the result is %q, want %q: %s", got, want, r.Pods[1].Reason)
	}
}

// TestPodsThatExistAreRefused checks the errors of a run.
func TestPodsThatExistAreRefused(t *testing.T) {
	cfg, err := latest.Default()
	if err != nil {
		t.Fatal(err)
	}
	objects := clusterfile.New()
	for _, object := range []runtime.Object{node("a", "x"), pod("p", "1", 0)} {
		if err := objects.Add(object, "test"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Run(t.Context(), Options{Objects: objects, Config: cfg, Pods: []*v1.Pod{pod("p", "1", 0)}}); err == nil || !strings.Contains(err.Error(), "exists in the cluster already") {
		t.Errorf("Run() = error %v", err)
	}
	objects.RemovePod("default", "p")
	if _, err := Run(t.Context(), Options{Objects: objects, Config: cfg}); err == nil || !strings.Contains(err.Error(), "no pending pods") {
		t.Errorf("Run() without pods = error %v", err)
	}
}
