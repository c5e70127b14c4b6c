package oracle

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest/generate"
)

// randomPod returns a random pod. It uses few different values, so that constraints often match other pods
// and nodes.
func (w *world) randomPod() *v1.Pod {
	w.lastNumber++
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: fmt.Sprintf("pod-%d", w.lastNumber), Namespace: pick(w, namespaces...),
		Labels: map[string]string{"app": pick(w, apps...), "version": pick(w, "1", "2")},
	}}
	pod.Spec.Containers = []v1.Container{{Name: "main", Image: pick(w, "nginx", "redis:7", "huge:1", "other")}}
	// Pods end gracefully, or are gone as soon as they are deleted.
	pod.Spec.TerminationGracePeriodSeconds = ptr.To(int64(w.rand.IntN(2) * 30))
	w.addRequests(pod)
	w.addPorts(pod)
	if w.chance(70) {
		pod.Spec.PriorityClassName = pick(w, sortedKeys(priorities)...)
	}
	if w.chance(35) {
		// Only the resources of the nodes matter for these.
		return pod
	}
	if w.chance(30) && pod.Namespace == "default" {
		pod.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "apps/v1", Kind: "ReplicaSet", Name: pod.Labels["app"], UID: "1", Controller: ptr.To(true),
		}}
	}
	for range claimCount(w) {
		w.addVolumeClaim(pod)
	}
	w.addOtherVolumes(pod)
	if w.chance(10) {
		requireFeature(pod)
	}
	for _, key := range []string{"gpu", "spot", "old"} {
		if w.chance(35) {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, w.toleration(key))
		}
	}
	w.addNodeConstraints(pod)
	for w.chance(20) {
		generate.AddSpreadConstraint(w.rand, pod, topologies, apps)
	}
	for w.chance(20) {
		w.addPodAffinityTerm(pod)
	}
	return pod
}

// addRequests adds resource requests: of containers, init containers and sidecars, of the pod as a whole, of
// its sandbox, and of devices.
func (w *world) addRequests(pod *v1.Pod) {
	main := &pod.Spec.Containers[0].Resources
	if w.chance(75) {
		main.Requests = v1.ResourceList{v1.ResourceCPU: quantity(pick(w, "100m", "500m", "1")), v1.ResourceMemory: quantity(pick(w, "128Mi", "1Gi"))}
	}
	if w.chance(12) {
		set(&main.Requests, v1.ResourceEphemeralStorage, pick(w, "1Gi", "6Gi"))
	}
	if w.chance(15) {
		pod.Spec.InitContainers = []v1.Container{{Name: "init", Image: "redis:7"}}
		init := &pod.Spec.InitContainers[0]
		set(&init.Resources.Requests, v1.ResourceCPU, pick(w, "200m", "1200m"))
		if w.chance(50) {
			init.RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
		}
	}
	switch {
	case w.chance(20):
		w.addPodRequests(pod)
	case w.chance(15):
		w.addSecondContainer(pod)
	}
	if w.chance(10) {
		pod.Spec.RuntimeClassName = ptr.To("sandbox")
	}
	w.addDeviceRequests(pod)
}

// addDeviceRequests sometimes adds requests for extended resources and huge pages.
func (w *world) addDeviceRequests(pod *v1.Pod) {
	container := &pod.Spec.Containers[0].Resources
	if len(pod.Spec.InitContainers) > 0 && w.chance(20) {
		container = &pod.Spec.InitContainers[0].Resources
	}
	if w.chance(7) {
		addResource(container, gpu, pick(w, "1", "2"))
	}
	if w.chance(7) {
		addResource(container, fpga, "1")
	}
	if w.chance(3) {
		addResource(container, v1.ResourceName(resourceapi.ResourceDeviceClassPrefix+deviceClass(gpu)), "1")
	}
	if w.chance(4) && pod.Spec.Resources == nil {
		addResource(&pod.Spec.Containers[0].Resources, hugePages, pick(w, "2Mi", "48Mi"))
		set(&pod.Spec.Containers[0].Resources.Requests, v1.ResourceMemory, "128Mi")
	}
}

// addSecondContainer adds a container with requests of its own.
func (w *world) addSecondContainer(pod *v1.Pod) {
	second := v1.Container{Name: "second", Image: pick(w, "nginx", "redis:7")}
	if w.chance(60) {
		set(&second.Resources.Requests, v1.ResourceCPU, pick(w, "50m", "300m"))
	}
	pod.Spec.Containers = append(pod.Spec.Containers, second)
}

// requireFeature makes a pod require a feature that only some nodes declare.
func requireFeature(pod *v1.Pod) {
	main := &pod.Spec.Containers[0]
	main.RestartPolicy = ptr.To(v1.ContainerRestartPolicyNever)
	main.RestartPolicyRules = []v1.ContainerRestartRule{{
		Action:    v1.ContainerRestartRuleActionRestartAllContainers,
		ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}},
	}}
}

// addPodRequests adds requests of the pod as a whole. They must be at least those of its containers, of which
// few remain: the more the two differ, the more does it matter which of them a plugin uses.
func (w *world) addPodRequests(pod *v1.Pod) {
	pod.Spec.Resources = &v1.ResourceRequirements{}
	set(&pod.Spec.Resources.Requests, v1.ResourceCPU, pick(w, "300m", "900m", "2500m"))
	if w.chance(60) {
		set(&pod.Spec.Resources.Requests, v1.ResourceMemory, pick(w, "256Mi", "3Gi"))
	}
	pod.Spec.InitContainers = nil
	requests := &pod.Spec.Containers[0].Resources.Requests
	*requests = nil
	if w.chance(30) {
		set(requests, v1.ResourceCPU, "100m")
	}
}

// addResource adds a request for an extended resource or huge pages, which needs an equal limit.
func addResource(resources *v1.ResourceRequirements, name v1.ResourceName, amount string) {
	set(&resources.Requests, name, amount)
	set(&resources.Limits, name, amount)
}

func set(list *v1.ResourceList, name v1.ResourceName, value string) {
	if *list == nil {
		*list = v1.ResourceList{}
	}
	(*list)[name] = quantity(value)
}

// addPorts sometimes adds a host port, with or without an address of the host.
func (w *world) addPorts(pod *v1.Pod) {
	if !w.chance(15) {
		return
	}
	port := int32(8000 + w.rand.IntN(2))
	pod.Spec.Containers[0].Ports = []v1.ContainerPort{{
		ContainerPort: port, HostPort: port, Protocol: pick(w, v1.ProtocolTCP, v1.ProtocolTCP, v1.ProtocolUDP),
		HostIP: pick(w, "", "0.0.0.0", "127.0.0.1", "10.0.0.1"),
	}}
}

// claimCount returns how many volume claims a pod has.
func claimCount(w *world) int {
	switch n := w.rand.IntN(100); {
	case n < 7:
		return 1
	case n < 10:
		return 2
	}
	return 0
}

func (w *world) addVolumeClaim(pod *v1.Pod) {
	name := pick(w, claims...)
	if w.chance(20) {
		name = w.addFreshClaim(pod.Namespace)
	}
	w.addVolumeSource(pod, v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}})
}

func (w *world) addVolumeSource(pod *v1.Pod, source v1.VolumeSource) {
	pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: fmt.Sprintf("data-%d", len(pod.Spec.Volumes)), VolumeSource: source})
}

// addOtherVolumes sometimes adds a volume that is not a claim. Two pods on a node cannot both write to a disk of
// the kinds iSCSI and RBD.
func (w *world) addOtherVolumes(pod *v1.Pod) {
	switch w.rand.IntN(30) {
	case 0:
		w.addVolumeSource(pod, v1.VolumeSource{ISCSI: &v1.ISCSIVolumeSource{
			TargetPortal: "10.0.0.1:3260", IQN: "iqn.2001-04.com.example:disk", ReadOnly: w.chance(30),
		}})
	case 1:
		w.addVolumeSource(pod, v1.VolumeSource{RBD: &v1.RBDVolumeSource{
			CephMonitors: []string{"10.0.0.1"}, RBDImage: "disk", RBDPool: "pool", RadosUser: "admin", Keyring: "/k", ReadOnly: w.chance(30),
		}})
	case 2:
		w.addVolumeSource(pod, v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: volumeDriver}})
	case 3, 4:
		w.addVolumeSource(pod, v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}})
	}
}

func (w *world) toleration(key string) v1.Toleration {
	if w.chance(3) {
		return v1.Toleration{Operator: v1.TolerationOpExists}
	}
	if w.chance(30) {
		return v1.Toleration{Key: key, Operator: v1.TolerationOpEqual, Value: "yes", Effect: pick(w, v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule)}
	}
	return v1.Toleration{Key: key, Operator: v1.TolerationOpExists}
}

// addNodeConstraints adds a node selector and node affinity.
func (w *world) addNodeConstraints(pod *v1.Pod) {
	if w.chance(12) {
		pod.Spec.NodeSelector = map[string]string{"disk": pick(w, "ssd", "hdd")}
	}
	if w.chance(4) {
		pod.Spec.NodeSelector = map[string]string{v1.LabelHostname: pick(w, w.names...)}
	}
	if !w.chance(25) {
		return
	}
	affinity := ensure(&ensure(&pod.Spec.Affinity).NodeAffinity)
	if w.chance(50) {
		required := ensure(&affinity.RequiredDuringSchedulingIgnoredDuringExecution)
		for range 1 + w.rand.IntN(2) {
			required.NodeSelectorTerms = append(required.NodeSelectorTerms, w.nodeSelectorTerm())
		}
	}
	for w.chance(60) {
		affinity.PreferredDuringSchedulingIgnoredDuringExecution = append(affinity.PreferredDuringSchedulingIgnoredDuringExecution,
			v1.PreferredSchedulingTerm{Weight: int32(1 + w.rand.IntN(20)), Preference: w.nodeSelectorTerm()})
	}
}

// nodeSelectorTerm returns a term with one or two requirements on labels. Rarely, it is one on the node's name.
func (w *world) nodeSelectorTerm() (term v1.NodeSelectorTerm) {
	if w.chance(8) {
		term.MatchFields = []v1.NodeSelectorRequirement{{
			Key: metav1.ObjectNameField, Operator: pick(w, v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn), Values: []string{pick(w, w.names...)},
		}}
		if w.chance(50) {
			return term
		}
	}
	for range 1 + w.rand.IntN(2) {
		requirement := v1.NodeSelectorRequirement{Operator: pick(w, v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn, v1.NodeSelectorOpExists, v1.NodeSelectorOpDoesNotExist)}
		requirement.Key = pick(w, "disk", v1.LabelTopologyZone, "rack")
		switch {
		case w.chance(40):
			requirement = v1.NodeSelectorRequirement{Key: "size", Operator: pick(w, v1.NodeSelectorOpGt, v1.NodeSelectorOpLt), Values: []string{pick(w, "0", "1", "2")}}
		case requirement.Operator == v1.NodeSelectorOpIn, requirement.Operator == v1.NodeSelectorOpNotIn:
			requirement.Values = map[string][]string{"disk": {"ssd"}, v1.LabelTopologyZone: {pick(w, zones...)}, "rack": {"0", "1"}}[requirement.Key]
		}
		term.MatchExpressions = append(term.MatchExpressions, requirement)
	}
	return term
}

// ensure returns the value of a field, which it sets to a new value if it is nil.
func ensure[T any](field **T) *T {
	if *field == nil {
		*field = new(T)
	}
	return *field
}
