package inmemory

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// template is the part that the pods of a class share.
type template struct {
	labels map[string]string
	owners []metav1.OwnerReference
	spec   v1.PodSpec
}

func (t *template) apply(pod *v1.Pod) {
	pod.Labels, pod.OwnerReferences, pod.Spec = t.labels, t.owners, t.spec
}

// newTemplate returns a template with these requests. It includes the tolerations that the API server adds
// to every pod.
func newTemplate(cpu, memory string) template {
	seconds := int64(300)
	tolerations := []v1.Toleration{
		{Key: v1.TaintNodeNotReady, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute, TolerationSeconds: &seconds},
		{Key: v1.TaintNodeUnreachable, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute, TolerationSeconds: &seconds},
	}
	return template{spec: v1.PodSpec{
		SchedulerName: v1.DefaultSchedulerName,
		Tolerations:   tolerations,
		Containers: []v1.Container{container(v1.ResourceList{
			v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory),
		})},
	}}
}

func container(requests v1.ResourceList) v1.Container {
	return v1.Container{
		Name: "main", Image: "registry.k8s.io/pause:3.10", Resources: v1.ResourceRequirements{Requests: requests},
	}
}

// deployments returns templates of pods that belong to ReplicaSets. The scheduler applies its default
// topology spread constraints to such pods.
func (w *workload) deployments(count int, cpu, memory string) []template {
	templates := make([]template, count)
	for i := range templates {
		templates[i] = newTemplate(cpu, memory)
		w.addOwner(&templates[i], fmt.Sprintf("web-%03d", i))
	}
	return templates
}

// addOwner creates a ReplicaSet, and makes it the owner of the pods of a template.
func (w *workload) addOwner(t *template, name string) {
	isController := true
	t.labels = map[string]string{"app": name, appsv1.DefaultDeploymentUniqueLabelKey: "5d4f8c7b9"}
	t.owners = []metav1.OwnerReference{{
		APIVersion: "apps/v1", Kind: "ReplicaSet", Name: name, UID: types.UID(name), Controller: &isController,
	}}
	w.replicaSets = append(w.replicaSets, &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name)},
		Spec:       appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: t.labels}},
	})
}

// templatesWithAntiAffinity returns templates, each of which is an app whose pods have anti-affinity to each
// other. avoid returns this anti-affinity.
func templatesWithAntiAffinity(count int, prefix string, avoid func(*metav1.LabelSelector) *v1.PodAntiAffinity) []template {
	templates := make([]template, count)
	for i := range templates {
		t := newTemplate("100m", "128Mi")
		t.labels = map[string]string{"app": fmt.Sprintf("%s-%04d", prefix, i)}
		t.spec.Affinity = &v1.Affinity{PodAntiAffinity: avoid(&metav1.LabelSelector{MatchLabels: t.labels})}
		templates[i] = t
	}
	return templates
}

// preferZones returns preferred anti-affinity in zones.
func preferZones(own *metav1.LabelSelector) *v1.PodAntiAffinity {
	return &v1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []v1.WeightedPodAffinityTerm{{
		Weight: 100, PodAffinityTerm: v1.PodAffinityTerm{LabelSelector: own, TopologyKey: v1.LabelTopologyZone},
	}}}
}

// requireHostname returns required anti-affinity on nodes.
func requireHostname(own *metav1.LabelSelector) *v1.PodAntiAffinity {
	return &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{
		{LabelSelector: own, TopologyKey: v1.LabelHostname},
	}}
}

// mixed returns templates of 200 pod classes: all combinations of ten sizes and five kinds of node
// selection, with and without a toleration, and with and without a ReplicaSet.
func (w *workload) mixed() []template {
	var templates []template
	for size := range 10 {
		for selection := range 5 {
			for _, withToleration := range []bool{false, true} {
				for _, withReplicaSet := range []bool{false, true} {
					t := newTemplate(fmt.Sprintf("%dm", 50+20*size), fmt.Sprintf("%dMi", 64+96*size))
					t.labels = map[string]string{"class": fmt.Sprint(len(templates))}
					selectNodes(&t.spec, selection)
					if withToleration {
						t.spec.Tolerations = append(t.spec.Tolerations, v1.Toleration{
							Key: "dedicated", Operator: v1.TolerationOpEqual, Value: "batch", Effect: v1.TaintEffectNoSchedule,
						})
					}
					if withReplicaSet {
						w.addOwner(&t, fmt.Sprintf("mixed-%03d", len(templates)))
					}
					templates = append(templates, t)
				}
			}
		}
	}
	return templates
}

// selectNodes adds one of five kinds of node selection to a pod; kind 0 selects all nodes.
func selectNodes(spec *v1.PodSpec, kind int) {
	prefer := func(key, value string, weight int32) *v1.Affinity {
		return &v1.Affinity{NodeAffinity: &v1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []v1.PreferredSchedulingTerm{{
				Weight: weight, Preference: v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{
					{Key: key, Operator: v1.NodeSelectorOpIn, Values: []string{value}},
				}},
			}},
		}}
	}
	switch kind {
	case 1:
		spec.NodeSelector = map[string]string{v1.LabelArchStable: "amd64"}
	case 2:
		spec.NodeSelector = map[string]string{v1.LabelTopologyZone: "zone-0"}
	case 3:
		spec.Affinity = prefer(v1.LabelArchStable, "arm64", 50)
	case 4:
		spec.Affinity = prefer(v1.LabelTopologyZone, "zone-0", 10)
	}
}

const (
	// One in vanishedEvery existing pods is terminating on one of the missingNodes.
	vanishedEvery = 40
	missingNodes  = 500
)

// existingPods returns the existing pods of the kind VanishedNodes. The pods on missing nodes have labels
// and anti-affinity of the pods to schedule, but must not affect where these are scheduled.
func existingPods(o Options) []*v1.Pod {
	size := appSize(o)
	old := templatesWithAntiAffinity((o.Existing+size-1)/size, "old", requireHostname)
	scheduled := templatesWithAntiAffinity((o.Pods+size-1)/size, "app", requireHostname)
	since := metav1.Now()
	pods := make([]*v1.Pod, o.Existing)
	for i := range pods {
		name := fmt.Sprintf("old-%07d", i)
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name), ResourceVersion: "1"}}
		if i%vanishedEvery == vanishedEvery-1 {
			scheduled[i%len(scheduled)].apply(pod)
			pod.DeletionTimestamp = &since
			pod.Spec.NodeName = fmt.Sprintf("gone-%04d", i%missingNodes)
		} else {
			old[i/size].apply(pod)
			pod.Spec.NodeName = nodeName(i % o.Nodes)
		}
		pods[i] = pod
	}
	return pods
}
