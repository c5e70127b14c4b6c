package generate

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// Pod returns a random pod. It uses few different values and many constraints, so that constraints
// often match other pods and nodes.
func (c *Cluster) Pod() *v1.Pod {
	c.LastNumber++
	name := fmt.Sprintf("pod-%d", c.LastNumber)
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: Pick(c.Rand, Namespaces), UID: types.UID(name),
		Labels: map[string]string{"app": Pick(c.Rand, Apps), "version": Pick(c.Rand, []string{"1", "2"}), "index": name},
	}}
	pod.Spec.SchedulerName = v1.DefaultSchedulerName
	container := v1.Container{Name: "main", Image: Pick(c.Rand, []string{"nginx", "redis:7", "huge:1", "other"})}
	if c.Chance(80) {
		container.Resources.Requests = schedtest.Resources(Pick(c.Rand, []string{"100m", "500m", "1"}), Pick(c.Rand, []string{"128Mi", "1Gi"}))
	}
	if c.Chance(10) {
		container.Resources.Requests = schedtest.Resources("100m", "64Mi")
		container.Resources.Requests["example.com/gpu"] = schedtest.Quantity("1")
	}
	if c.Chance(12) {
		container.Ports = []v1.ContainerPort{{
			HostPort: int32(8000 + c.Rand.IntN(2)), Protocol: Pick(c.Rand, []v1.Protocol{v1.ProtocolTCP, v1.ProtocolTCP, v1.ProtocolUDP}),
			HostIP: Pick(c.Rand, []string{"", "", "0.0.0.0", "127.0.0.1", "10.0.0.1"}),
		}}
	}
	pod.Spec.Containers = []v1.Container{container}
	if c.Chance(10) {
		pod.Spec.InitContainers = []v1.Container{{Name: "init", Image: "redis:7"}}
	}
	c.addRequests(pod)
	c.requireFeatures(pod)
	c.addConstraints(pod)
	return pod
}

// addRequests adds rarer forms of requests: more containers, sidecars, ephemeral storage, fractions of a byte,
// overhead, and requests of the pod as a whole.
func (c *Cluster) addRequests(pod *v1.Pod) {
	if c.Chance(15) {
		second := v1.Container{Name: "second", Image: "nginx"}
		if c.Chance(50) {
			second.Resources.Requests = v1.ResourceList{v1.ResourceCPU: schedtest.Quantity("200m")}
		}
		pod.Spec.Containers = append(pod.Spec.Containers, second)
	}
	if c.Chance(8) {
		sidecar := v1.Container{Name: "sidecar", Image: "other", RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways)}
		sidecar.Resources.Requests = schedtest.Resources("50m", "32Mi")
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, sidecar)
	}
	if c.Chance(12) {
		ensureList(&pod.Spec.Containers[0].Resources.Requests)[v1.ResourceEphemeralStorage] = schedtest.Quantity(Pick(c.Rand, []string{"100Mi", "600Mi", "2Gi"}))
	}
	if c.Chance(4) {
		for i := range pod.Spec.Containers {
			ensureList(&pod.Spec.Containers[i].Resources.Requests)[v1.ResourceMemory] = schedtest.Quantity("2500m")
		}
	}
	if c.Chance(10) {
		pod.Spec.Overhead = schedtest.Resources("250m", "120Mi")
	}
	if c.Chance(20) {
		requests := v1.ResourceList{}
		for _, resource := range []struct {
			name    v1.ResourceName
			amounts []string
		}{
			{v1.ResourceCPU, []string{"1", "1500m", "2"}}, {v1.ResourceMemory, []string{"1Gi", "3Gi"}}, {v1.ResourceHugePagesPrefix + "2Mi", []string{"4Mi", "128Mi"}},
		} {
			if c.Chance(40) {
				requests[resource.name] = schedtest.Quantity(Pick(c.Rand, resource.amounts))
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
	UserNamespacesFeature = "UserNamespacesHostNetworkSupport"
	RestartFeature        = "RestartAllContainersOnContainerExits"
)

// requireFeatures makes a pod require node features.
func (c *Cluster) requireFeatures(pod *v1.Pod) {
	if c.Chance(8) {
		pod.Spec.HostNetwork, pod.Spec.HostUsers = true, ptr.To(c.Chance(30))
	}
	if c.Chance(5) {
		pod.Spec.Containers[0].RestartPolicyRules = []v1.ContainerRestartRule{{Action: v1.ContainerRestartRuleActionRestartAllContainers}}
	}
}

// addConstraints adds random constraints on nodes and on other pods.
func (c *Cluster) addConstraints(pod *v1.Pod) {
	if c.Chance(30) && pod.Namespace == "default" {
		pod.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "apps/v1", Kind: "ReplicaSet", Name: pod.Labels["app"], Controller: ptr.To(true),
		}}
	}
	if c.Chance(15) {
		pod.Spec.NodeSelector = map[string]string{"disk": Pick(c.Rand, []string{"ssd", "hdd"})}
	}
	if c.Chance(4) {
		c.restrictToNamedNodes(pod)
	}
	c.addVolumes(pod)
	for _, key := range []string{"gpu", "spot", "old"} {
		if c.Chance(35) {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, v1.Toleration{Key: key, Operator: v1.TolerationOpExists})
		}
	}
	if c.Chance(25) {
		c.affinityOf(pod).NodeAffinity = c.nodeAffinity()
	}
	for c.Chance(20) {
		AddSpreadConstraint(c.Rand, pod, topologies, Apps)
	}
	for c.Chance(20) {
		c.addPodAffinityTerm(pod, Pick(c.Rand, topologies), c.Rand.IntN(8))
	}
	if c.Chance(1) {
		// More keys than a class may have counters of spread constraints. No required affinity, because the pod
		// would fit on no node.
		for i := range 80 {
			c.addPodAffinityTerm(pod, rareLabel(i), 1+c.Rand.IntN(7))
		}
	}
	if c.Chance(30) {
		pod.Spec.Priority = ptr.To(int32(c.Rand.IntN(3)))
	}
	// Start times differ because preemption would choose between equal ones at random.
	pod.Status.StartTime = &metav1.Time{Time: time.Unix(int64(c.Rand.IntN(1<<30)), 0)}
}

// addVolumes adds volumes with claims, disks that two pods on a node cannot share, and volumes that do not matter.
func (c *Cluster) addVolumes(pod *v1.Pod) {
	add := func(source v1.VolumeSource) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: fmt.Sprint("data-", len(pod.Spec.Volumes)), VolumeSource: source})
	}
	if c.Chance(12) {
		for range 1 + c.Rand.IntN(2) {
			add(v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: Pick(c.Rand, c.claims())}})
		}
	}
	if c.Chance(2) {
		add(v1.VolumeSource{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: fmt.Sprint("disk-", c.Rand.IntN(3)), ReadOnly: c.Chance(50)}})
	}
	if c.Chance(2) {
		add(v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "nfs", Path: "/"}})
	}
}

// affinityOf returns the affinity of a pod, which it creates if there is none.
func (c *Cluster) affinityOf(pod *v1.Pod) *v1.Affinity {
	if pod.Spec.Affinity == nil {
		pod.Spec.Affinity = &v1.Affinity{}
	}
	return pod.Spec.Affinity
}

func (c *Cluster) nodeAffinity() *v1.NodeAffinity {
	term := func() v1.NodeSelectorTerm {
		if c.Chance(25) {
			return v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{{
				Key: "cores", Operator: Pick(c.Rand, []v1.NodeSelectorOperator{v1.NodeSelectorOpGt, v1.NodeSelectorOpLt}), Values: []string{Pick(c.Rand, []string{"2", "7", "10"})},
			}}}
		}
		key := Pick(c.Rand, []string{"disk", v1.LabelTopologyZone, "rack"})
		values := map[string][]string{"disk": {"ssd"}, v1.LabelTopologyZone: {Pick(c.Rand, zones)}, "rack": {"0", "1"}}[key]
		operator := Pick(c.Rand, []v1.NodeSelectorOperator{v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn, v1.NodeSelectorOpExists})
		if operator == v1.NodeSelectorOpExists {
			values = nil
		}
		return v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{{Key: key, Operator: operator, Values: values}}}
	}
	affinity := &v1.NodeAffinity{}
	if c.Chance(40) {
		affinity.RequiredDuringSchedulingIgnoredDuringExecution = &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{term()}}
	}
	for c.Chance(60) {
		affinity.PreferredDuringSchedulingIgnoredDuringExecution = append(affinity.PreferredDuringSchedulingIgnoredDuringExecution,
			v1.PreferredSchedulingTerm{Weight: int32(1 + c.Rand.IntN(20)), Preference: term()})
	}
	return affinity
}

// topologies are the topology keys of constraints. Few nodes have the last one as a label, and often none has.
var topologies = []string{v1.LabelHostname, v1.LabelTopologyZone, "rack", "row"}

// rareLabel returns one of many keys of node labels. Few nodes have each of them.
func rareLabel(number int) string { return fmt.Sprint("rare-", number) }

// addPodAffinityTerm adds a term with a topology key. The kind is 0 for required affinity, 1 to 3 for anti-affinity,
// and up to 7 for preferred affinity.
func (c *Cluster) addPodAffinityTerm(pod *v1.Pod, key string, kind int) {
	term := v1.PodAffinityTerm{LabelSelector: Selector(c.Rand, pod, Apps), TopologyKey: key}
	switch c.Rand.IntN(6) {
	case 0:
		term.Namespaces = []string{Pick(c.Rand, Namespaces)}
	case 1:
		term.NamespaceSelector = &metav1.LabelSelector{}
	case 2:
		term.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "yes"}}
	}
	weighted := v1.WeightedPodAffinityTerm{Weight: int32(1 + c.Rand.IntN(100)), PodAffinityTerm: term}
	affinity := c.affinityOf(pod)
	switch kind {
	case 0:
		podAffinity := ensure(&affinity.PodAffinity)
		podAffinity.RequiredDuringSchedulingIgnoredDuringExecution = append(podAffinity.RequiredDuringSchedulingIgnoredDuringExecution, term)
	case 1, 2, 3:
		antiAffinity := ensure(&affinity.PodAntiAffinity)
		if c.Chance(40) {
			antiAffinity.RequiredDuringSchedulingIgnoredDuringExecution = append(antiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, term)
		} else {
			antiAffinity.PreferredDuringSchedulingIgnoredDuringExecution = append(antiAffinity.PreferredDuringSchedulingIgnoredDuringExecution, weighted)
		}
	default:
		podAffinity := ensure(&affinity.PodAffinity)
		podAffinity.PreferredDuringSchedulingIgnoredDuringExecution = append(podAffinity.PreferredDuringSchedulingIgnoredDuringExecution, weighted)
	}
}

// KeepApart adds a required anti-affinity term to a pod, for zones or racks. An eviction makes room for such a pod
// only if the pods in the whole zone count.
func (c *Cluster) KeepApart(pod *v1.Pod) {
	antiAffinity := ensure(&c.affinityOf(pod).PodAntiAffinity)
	antiAffinity.RequiredDuringSchedulingIgnoredDuringExecution = append(antiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, v1.PodAffinityTerm{
		TopologyKey: Pick(c.Rand, topologies[1:]),
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{
			"app": Pick(c.Rand, Apps), "version": Pick(c.Rand, []string{"1", "2"}),
		}},
	})
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
func (c *Cluster) restrictToNamedNodes(pod *v1.Pod) {
	var names []string
	for range 1 + c.Rand.IntN(4) {
		if node := c.RandomNode(); node != nil {
			names = append(names, node.Name)
		}
	}
	if len(names) == 0 {
		return
	}
	if c.Chance(30) {
		pod.Spec.NodeSelector = map[string]string{v1.LabelHostname: names[0]}
		return
	}
	pod.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{
		NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchFields: []v1.NodeSelectorRequirement{
			{Key: "metadata.name", Operator: v1.NodeSelectorOpIn, Values: names[:1]},
		}}},
	}}}
}

// Copy returns a pending pod that equals another one except for its name, UID and start time.
func (c *Cluster) Copy(pod *v1.Pod) *v1.Pod {
	c.LastNumber++
	next := pod.DeepCopy()
	next.Name = fmt.Sprintf("pod-%d", c.LastNumber)
	next.UID = types.UID(next.Name)
	next.Spec.NodeName = ""
	next.Status.StartTime = &metav1.Time{Time: time.Unix(int64(c.Rand.IntN(1<<30)), 0)}
	return next
}

// ChangedPod returns a copy of a pod that terminates or has other labels.
func (c *Cluster) ChangedPod(pod *v1.Pod) *v1.Pod {
	changed := pod.DeepCopy()
	if c.Chance(50) {
		now := metav1.Now()
		changed.DeletionTimestamp = &now
	} else {
		changed.Labels["app"] = Pick(c.Rand, Apps)
	}
	return changed
}
