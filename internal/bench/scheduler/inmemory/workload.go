package inmemory

import (
	"fmt"
	"math/rand/v2"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const namespace = metav1.NamespaceDefault

// workload is a cluster and the pods to schedule. Objects share their parts: a run of a million
// pods on a million nodes must fit in memory together with the scheduler.
type workload struct {
	nodes       []*v1.Node
	existing    []*v1.Pod
	replicaSets []*appsv1.ReplicaSet
	// fill sets the fields of a pod that depend on its number.
	fill func(pod *v1.Pod, number int)
}

func newWorkload(o Options) *workload {
	w := &workload{nodes: makeNodes(o)}
	w.setKind(o)
	return w
}

// pod returns the pod with this number. It is deterministic.
func (w *workload) pod(number int) *v1.Pod {
	name := podName(number)
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: types.UID(name), ResourceVersion: "1",
	}}
	w.fill(pod, number)
	return pod
}

const podPrefix = "pod-"

func podName(number int) string {
	digits := strconv.Itoa(number)
	return podPrefix + "0000000"[min(len(digits), 7):] + digits
}

// podNumber is the inverse of podName.
func podNumber(name string) int {
	number, err := strconv.Atoi(name[len(podPrefix):])
	if err != nil {
		panic(err)
	}
	return number
}

func nodeName(number int) string { return fmt.Sprintf("node-%07d", number) }

// makeNodes returns nodes of one size. Nodes of the kind Mixed have two architectures; one in ten
// has a NoSchedule taint, and one in ten a PreferNoSchedule taint.
func makeNodes(o Options) []*v1.Node {
	capacity := v1.ResourceList{
		v1.ResourceCPU: resource.MustParse("32"), v1.ResourceMemory: resource.MustParse("256Gi"),
		v1.ResourcePods: resource.MustParse("110"),
	}
	ready := []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}
	zones := make([]string, o.Zones)
	for i := range zones {
		zones[i] = fmt.Sprintf("zone-%d", i)
	}
	taints := map[int][]v1.Taint{
		3: {{Key: "dedicated", Value: "batch", Effect: v1.TaintEffectNoSchedule}},
		7: {{Key: "busy", Effect: v1.TaintEffectPreferNoSchedule}},
	}
	nodes := make([]*v1.Node, o.Nodes)
	for i := range nodes {
		name, arch := nodeName(i), "amd64"
		var tainted []v1.Taint
		if o.PodKind == Mixed {
			tainted = taints[i/o.Zones%10]
			if i/o.Zones%4 == 1 {
				arch = "arm64"
			}
		}
		nodes[i] = &v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{
				v1.LabelHostname: name, v1.LabelTopologyZone: zones[i%o.Zones], v1.LabelTopologyRegion: "region-0",
				v1.LabelArchStable: arch, v1.LabelOSStable: "linux",
			}},
			Spec:   v1.NodeSpec{Taints: tainted},
			Status: v1.NodeStatus{Capacity: capacity, Allocatable: capacity, Conditions: ready},
		}
	}
	return nodes
}

// setKind sets the kind of the pods.
func (w *workload) setKind(o Options) {
	switch o.PodKind {
	case Plain:
		w.fillFrom([]template{newTemplate("100m", "128Mi")}, func(int) int { return 0 })
	case Deployment:
		templates := w.deployments(100, "100m", "128Mi")
		w.fillFrom(templates, func(number int) int { return number % len(templates) })
	case ZoneAntiAffinity:
		templates := antiAffine(20, "app", preferZones)
		w.fillFrom(templates, func(number int) int { return number % len(templates) })
	case HostnameAntiAffinity:
		w.setLonely(o)
	case Mixed:
		templates := w.mixed()
		w.fillFrom(templates, func(number int) int {
			return rand.New(rand.NewPCG(uint64(o.Seed), uint64(number))).IntN(len(templates))
		})
	case Unique:
		w.setUnique()
	case VanishedNodes:
		w.setLonely(o)
		w.existing = existingPods(o)
	}
}

func (w *workload) fillFrom(templates []template, choose func(number int) int) {
	w.fill = func(pod *v1.Pod, number int) { templates[choose(number)].apply(pod) }
}

// setUnique gives each pod different requests, so that no result can be reused.
func (w *workload) setUnique() {
	base := newTemplate("50m", "64Mi")
	const sizes = 100
	w.fill = func(pod *v1.Pod, number int) {
		base.apply(pod)
		pod.Spec.Containers = []v1.Container{container(v1.ResourceList{
			v1.ResourceCPU:    *resource.NewMilliQuantity(int64(50+number%sizes), resource.DecimalSI),
			v1.ResourceMemory: *resource.NewQuantity(64<<20+int64(number/sizes)<<16, resource.BinarySI),
		})}
	}
}

// setLonely creates apps with at most one pod per node.
func (w *workload) setLonely(o Options) {
	size := appSize(o)
	templates := antiAffine((o.Pods+size-1)/size, "app", refuseHostname)
	w.fillFrom(templates, func(number int) int { return number / size })
}

// appSize limits the size of an app to the number of nodes.
func appSize(o Options) int { return min(1000, o.Nodes) }
