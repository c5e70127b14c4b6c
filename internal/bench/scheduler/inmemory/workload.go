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

// workload is a cluster and the pods to schedule. The objects share their parts, because a million pods and
// a million nodes must fit in memory together with the scheduler.
type workload struct {
	nodes       []*v1.Node
	existing    []*v1.Pod
	replicaSets []*appsv1.ReplicaSet
	storage
	devices
	// fill sets the fields of a pod that depend on its number.
	fill func(pod *v1.Pod, number int)
}

func newWorkload(o Options) *workload {
	w := &workload{nodes: makeNodes(o)}
	w.setKind(o)
	return w
}

// pod returns the pod with this number. Each call returns an equal pod.
func (w *workload) pod(number int) *v1.Pod {
	name := podName(number)
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: types.UID(name), ResourceVersion: "1",
	}}
	w.fill(pod, number)
	return pod
}

const podPrefix = "pod-"

// podName returns the name of the pod with this number, such as pod-0000012.
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

// makeNodes returns nodes of one size. For the kind Mixed, the nodes have two architectures, one in ten nodes
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

// setKind sets the kind of the pods to schedule, and creates the existing pods if the kind has any.
func (w *workload) setKind(o Options) {
	switch o.PodKind {
	case Plain:
		w.fillFrom([]template{newTemplate("100m", "128Mi")}, func(int) int { return 0 })
	case Deployment:
		templates := w.deployments(100, "100m", "128Mi")
		w.fillFrom(templates, func(number int) int { return number % len(templates) })
	case ZoneAntiAffinity:
		templates := templatesWithAntiAffinity(20, "app", preferZones)
		w.fillFrom(templates, func(number int) int { return number % len(templates) })
	case HostnameAntiAffinity:
		w.setOnePerNode(o)
	case Mixed:
		templates := w.mixed()
		w.fillFrom(templates, func(number int) int {
			return rand.New(rand.NewPCG(uint64(o.Seed), uint64(number))).IntN(len(templates))
		})
	case Unique:
		w.setUnique()
	case VanishedNodes:
		w.setOnePerNode(o)
		w.existing = existingPods(o)
	case BoundVolume:
		w.addBoundVolumes(o)
	case NewVolume:
		w.addNewVolumes(o)
	case Device:
		w.addDevices(o)
	}
}

// fillFrom sets the pods to those of templates. choose returns the index of the template of a pod.
func (w *workload) fillFrom(templates []template, choose func(number int) int) {
	w.fill = func(pod *v1.Pod, number int) { templates[choose(number)].apply(pod) }
}

// setUnique gives each pod different requests. Each pod is then in a pod class of its own, and the scheduler
// cannot reuse results.
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

// setOnePerNode divides the pods into apps, of which each node can run at most one pod.
func (w *workload) setOnePerNode(o Options) {
	size := appSize(o)
	templates := templatesWithAntiAffinity((o.Pods+size-1)/size, "app", requireHostname)
	w.fillFrom(templates, func(number int) int { return number / size })
}

// appSize returns the number of pods of an app: 1,000, but at most the number of nodes.
func appSize(o Options) int { return min(1000, o.Nodes) }
