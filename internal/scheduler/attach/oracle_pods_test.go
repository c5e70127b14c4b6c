package attach_test

import (
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/utils/ptr"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// randomPodSpec returns a random pod. It uses few different values and many constraints, so that
// constraints often match other pods and nodes.
func (w *world) randomPodSpec() *v1.Pod {
	name := fmt.Sprintf("pod-%d", w.lastNumber)
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: pick(w, namespaces), UID: types.UID(name),
		Labels: map[string]string{"app": pick(w, apps), "version": pick(w, []string{"1", "2"}), "index": name},
	}}
	pod.Spec.SchedulerName = v1.DefaultSchedulerName
	container := v1.Container{Name: "main", Image: pick(w, []string{"nginx", "redis:7", "huge:1", "other"})}
	if w.chance(80) {
		container.Resources.Requests = schedtest.Resources(pick(w, []string{"100m", "500m", "1"}), pick(w, []string{"128Mi", "1Gi"}))
	}
	if w.chance(10) {
		container.Resources.Requests = schedtest.Resources("100m", "64Mi")
		container.Resources.Requests["example.com/gpu"] = schedtest.Quantity("1")
	}
	if w.chance(12) {
		container.Ports = []v1.ContainerPort{{
			HostPort: int32(8000 + w.rand.IntN(2)), Protocol: pick(w, []v1.Protocol{v1.ProtocolTCP, v1.ProtocolTCP, v1.ProtocolUDP}),
			HostIP: pick(w, []string{"", "", "0.0.0.0", "127.0.0.1", "10.0.0.1"}),
		}}
	}
	pod.Spec.Containers = []v1.Container{container}
	if w.chance(10) {
		pod.Spec.InitContainers = []v1.Container{{Name: "init", Image: "redis:7"}}
	}
	w.addRequests(pod)
	w.requireFeatures(pod)
	w.addConstraints(pod)
	return pod
}

// addRequests adds rarer forms of requests: more containers, sidecars, ephemeral storage, fractions of a byte,
// overhead, and requests of the pod as a whole.
func (w *world) addRequests(pod *v1.Pod) {
	if w.chance(15) {
		second := v1.Container{Name: "second", Image: "nginx"}
		if w.chance(50) {
			second.Resources.Requests = v1.ResourceList{v1.ResourceCPU: schedtest.Quantity("200m")}
		}
		pod.Spec.Containers = append(pod.Spec.Containers, second)
	}
	if w.chance(8) {
		sidecar := v1.Container{Name: "sidecar", Image: "other", RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways)}
		sidecar.Resources.Requests = schedtest.Resources("50m", "32Mi")
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, sidecar)
	}
	if w.chance(12) {
		ensureList(&pod.Spec.Containers[0].Resources.Requests)[v1.ResourceEphemeralStorage] = schedtest.Quantity(pick(w, []string{"100Mi", "600Mi", "2Gi"}))
	}
	if w.chance(4) {
		for i := range pod.Spec.Containers {
			ensureList(&pod.Spec.Containers[i].Resources.Requests)[v1.ResourceMemory] = schedtest.Quantity("2500m")
		}
	}
	if w.chance(10) {
		pod.Spec.Overhead = schedtest.Resources("250m", "120Mi")
	}
	if w.chance(20) {
		requests := v1.ResourceList{}
		for _, resource := range []struct {
			name    v1.ResourceName
			amounts []string
		}{
			{v1.ResourceCPU, []string{"1", "1500m", "2"}}, {v1.ResourceMemory, []string{"1Gi", "3Gi"}}, {v1.ResourceHugePagesPrefix + "2Mi", []string{"4Mi", "128Mi"}},
		} {
			if w.chance(40) {
				requests[resource.name] = schedtest.Quantity(pick(w, resource.amounts))
			}
		}
		pod.Spec.Resources = &v1.ResourceRequirements{Requests: requests}
	}
}

// ensureList returns a list of resources, which it creates if there is none.
func ensureList(list *v1.ResourceList) v1.ResourceList {
	if *list == nil {
		*list = v1.ResourceList{}
	}
	return *list
}

// The features that pods require and nodes declare.
const (
	userNamespacesFeature = "UserNamespacesHostNetworkSupport"
	restartFeature        = "RestartAllContainersOnContainerExits"
)

// requireFeatures makes a pod require node features.
func (w *world) requireFeatures(pod *v1.Pod) {
	if w.chance(8) {
		pod.Spec.HostNetwork, pod.Spec.HostUsers = true, ptr.To(w.chance(30))
	}
	if w.chance(5) {
		pod.Spec.Containers[0].RestartPolicyRules = []v1.ContainerRestartRule{{Action: v1.ContainerRestartRuleActionRestartAllContainers}}
	}
}

// addConstraints adds random constraints on nodes and on other pods.
func (w *world) addConstraints(pod *v1.Pod) {
	if w.chance(30) && pod.Namespace == "default" {
		pod.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "apps/v1", Kind: "ReplicaSet", Name: pod.Labels["app"], Controller: ptr.To(true),
		}}
	}
	if w.chance(15) {
		pod.Spec.NodeSelector = map[string]string{"disk": pick(w, []string{"ssd", "hdd"})}
	}
	if w.chance(4) {
		w.restrictToNamedNodes(pod)
	}
	if w.chance(6) {
		for i := range 1 + w.rand.IntN(2) {
			pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: fmt.Sprint("data-", i), VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: pick(w, claims)},
			}})
		}
	}
	for _, key := range []string{"gpu", "spot", "old"} {
		if w.chance(35) {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, v1.Toleration{Key: key, Operator: v1.TolerationOpExists})
		}
	}
	if w.chance(25) {
		w.affinityOf(pod).NodeAffinity = w.nodeAffinity()
	}
	for w.chance(20) {
		w.addSpreadConstraint(pod)
	}
	for w.chance(20) {
		w.addPodAffinityTerm(pod)
	}
	if w.chance(30) {
		pod.Spec.Priority = ptr.To(int32(w.rand.IntN(3)))
	}
	// Start times differ because preemption would choose between equal ones at random.
	pod.Status.StartTime = &metav1.Time{Time: time.Unix(int64(w.rand.IntN(1<<30)), 0)}
}

// affinityOf returns the affinity of a pod, which it creates if there is none.
func (w *world) affinityOf(pod *v1.Pod) *v1.Affinity {
	if pod.Spec.Affinity == nil {
		pod.Spec.Affinity = &v1.Affinity{}
	}
	return pod.Spec.Affinity
}

func (w *world) nodeAffinity() *v1.NodeAffinity {
	term := func() v1.NodeSelectorTerm {
		if w.chance(25) {
			return v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{{
				Key: "cores", Operator: pick(w, []v1.NodeSelectorOperator{v1.NodeSelectorOpGt, v1.NodeSelectorOpLt}), Values: []string{pick(w, []string{"2", "7", "10"})},
			}}}
		}
		key := pick(w, []string{"disk", v1.LabelTopologyZone, "rack"})
		values := map[string][]string{"disk": {"ssd"}, v1.LabelTopologyZone: {pick(w, zones)}, "rack": {"0", "1"}}[key]
		operator := pick(w, []v1.NodeSelectorOperator{v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn, v1.NodeSelectorOpExists})
		if operator == v1.NodeSelectorOpExists {
			values = nil
		}
		return v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{{Key: key, Operator: operator, Values: values}}}
	}
	affinity := &v1.NodeAffinity{}
	if w.chance(40) {
		affinity.RequiredDuringSchedulingIgnoredDuringExecution = &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{term()}}
	}
	for w.chance(60) {
		affinity.PreferredDuringSchedulingIgnoredDuringExecution = append(affinity.PreferredDuringSchedulingIgnoredDuringExecution,
			v1.PreferredSchedulingTerm{Weight: int32(1 + w.rand.IntN(20)), Preference: term()})
	}
	return affinity
}

var topologies = []string{v1.LabelHostname, v1.LabelTopologyZone, "rack"}

// selector returns a label selector. It often selects the pod itself.
func (w *world) selector(pod *v1.Pod) *metav1.LabelSelector {
	switch w.rand.IntN(5) {
	case 0:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: []string{pick(w, apps)}},
		}}
	case 1:
		return &metav1.LabelSelector{MatchLabels: map[string]string{"version": "1"}}
	case 2:
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": pick(w, apps)}}
	}
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": pod.Labels["app"]}}
}

// addSpreadConstraint adds a topology spread constraint, unless it would be a duplicate.
func (w *world) addSpreadConstraint(pod *v1.Pod) {
	constraint := v1.TopologySpreadConstraint{
		MaxSkew: int32(1 + w.rand.IntN(3)), TopologyKey: pick(w, topologies),
		WhenUnsatisfiable: pick(w, []v1.UnsatisfiableConstraintAction{v1.DoNotSchedule, v1.ScheduleAnyway}),
		LabelSelector:     w.selector(pod),
	}
	for _, other := range pod.Spec.TopologySpreadConstraints {
		if other.TopologyKey == constraint.TopologyKey && other.WhenUnsatisfiable == constraint.WhenUnsatisfiable {
			return
		}
	}
	if w.chance(20) {
		constraint.MatchLabelKeys = []string{"version"}
	}
	if w.chance(20) && constraint.WhenUnsatisfiable == v1.DoNotSchedule {
		constraint.MinDomains = ptr.To(int32(1 + w.rand.IntN(5)))
	}
	if w.chance(30) {
		constraint.NodeTaintsPolicy = ptr.To(v1.NodeInclusionPolicyHonor)
	}
	if w.chance(30) {
		constraint.NodeAffinityPolicy = ptr.To(v1.NodeInclusionPolicyIgnore)
	}
	pod.Spec.TopologySpreadConstraints = append(pod.Spec.TopologySpreadConstraints, constraint)
}

// addPodAffinityTerm adds a required or preferred term of pod affinity or anti-affinity.
func (w *world) addPodAffinityTerm(pod *v1.Pod) {
	term := v1.PodAffinityTerm{LabelSelector: w.selector(pod), TopologyKey: pick(w, topologies)}
	switch w.rand.IntN(6) {
	case 0:
		term.Namespaces = []string{pick(w, namespaces)}
	case 1:
		term.NamespaceSelector = &metav1.LabelSelector{}
	case 2:
		term.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "yes"}}
	}
	weighted := v1.WeightedPodAffinityTerm{Weight: int32(1 + w.rand.IntN(100)), PodAffinityTerm: term}
	affinity := w.affinityOf(pod)
	switch w.rand.IntN(8) {
	case 0:
		podAffinity := ensure(&affinity.PodAffinity)
		podAffinity.RequiredDuringSchedulingIgnoredDuringExecution = append(podAffinity.RequiredDuringSchedulingIgnoredDuringExecution, term)
	case 1, 2, 3:
		antiAffinity := ensure(&affinity.PodAntiAffinity)
		if w.chance(40) {
			antiAffinity.RequiredDuringSchedulingIgnoredDuringExecution = append(antiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, term)
		} else {
			antiAffinity.PreferredDuringSchedulingIgnoredDuringExecution = append(antiAffinity.PreferredDuringSchedulingIgnoredDuringExecution, weighted)
		}
	default:
		podAffinity := ensure(&affinity.PodAffinity)
		podAffinity.PreferredDuringSchedulingIgnoredDuringExecution = append(podAffinity.PreferredDuringSchedulingIgnoredDuringExecution, weighted)
	}
}

// ensure returns the value of a field, which it sets to a new value if it is nil.
func ensure[T any](field **T) *T {
	if *field == nil {
		*field = new(T)
	}
	return *field
}

// restrictToNamedNodes adds a node selector or a node affinity that only one node satisfies, by its
// name.
func (w *world) restrictToNamedNodes(pod *v1.Pod) {
	var names []string
	for range 1 + w.rand.IntN(4) {
		if node := w.randomNode(); node != nil {
			names = append(names, node.Name)
		}
	}
	if len(names) == 0 {
		return
	}
	if w.chance(30) {
		pod.Spec.NodeSelector = map[string]string{v1.LabelHostname: names[0]}
		return
	}
	pod.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{
		NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchFields: []v1.NodeSelectorRequirement{
			{Key: "metadata.name", Operator: v1.NodeSelectorOpIn, Values: names[:1]},
		}}},
	}}}
}

// claims are names of persistent volume claims. Two are bound to volumes in a zone, "later" waits
// for its first consumer, "once" has the access mode ReadWriteOncePod, and "missing" does not
// exist.
var claims = []string{"in-a", "in-b", "later", "once", "missing"}

// addVolumes adds a storage class, volumes and claims to informers.
func (w *world) addVolumes(to informers.SharedInformerFactory) {
	class := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: "example.com/local",
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
		AllowedTopologies: []v1.TopologySelectorTerm{{MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{
			{Key: v1.LabelTopologyZone, Values: []string{"a", "b"}},
		}}},
	}
	w.must(to.Storage().V1().StorageClasses().Informer().GetIndexer().Add(class))
	for _, namespace := range namespaces {
		for _, name := range claims[:4] {
			claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
				Name: name, Namespace: namespace, UID: types.UID(namespace + name), Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes"},
			}}
			claim.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
			if name == "once" {
				claim.Spec.AccessModes[0] = v1.ReadWriteOncePod
			}
			if name == "later" {
				claim.Annotations = nil
				claim.Spec.StorageClassName = ptr.To("local")
			} else {
				w.bindVolume(to, claim)
			}
			w.must(to.Core().V1().PersistentVolumeClaims().Informer().GetIndexer().Add(claim))
		}
	}
}

// bindVolume adds a volume to informers and binds a claim to it.
func (w *world) bindVolume(to informers.SharedInformerFactory, claim *v1.PersistentVolumeClaim) {
	volume := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: claim.Namespace + "-" + claim.Name}}
	volume.Spec.ClaimRef = &v1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
	volume.Spec.AccessModes = claim.Spec.AccessModes
	if zone, zonal := strings.CutPrefix(claim.Name, "in-"); zonal {
		volume.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelTopologyZone, Operator: v1.NodeSelectorOpIn, Values: []string{zone}}},
		}}}}
	}
	claim.Spec.VolumeName = volume.Name
	claim.Status.Phase = v1.ClaimBound
	w.must(to.Core().V1().PersistentVolumes().Informer().GetIndexer().Add(volume))
}

// addBudgets adds two pod disruption budgets to informers: one allows no disruption, one allows
// one.
func (w *world) addBudgets(to informers.SharedInformerFactory) {
	for i, app := range apps[:2] {
		budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: app, Namespace: "default"}}
		budget.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
		budget.Status.DisruptionsAllowed = int32(i)
		w.must(to.Policy().V1().PodDisruptionBudgets().Informer().GetIndexer().Add(budget))
	}
}
