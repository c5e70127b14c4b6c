package generate

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// Objects returns the objects besides nodes, pods and namespaces that decisions depend on.
func Objects() []runtime.Object {
	return append(append(volumes(), budgets()...), workloads()...)
}

// Namespace returns a namespace. Affinity terms select namespaces that are teams.
func Namespace(name string, team bool) *v1.Namespace {
	labels := map[string]string{v1.LabelMetadataName: name}
	if team {
		labels["team"] = "yes"
	}
	return &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
}

// workloads returns ReplicaSets and a Service, which own and select pods.
func workloads() (all []runtime.Object) {
	for _, app := range Apps {
		all = append(all, &appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{Name: app, Namespace: "default"},
			Spec:       appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
		})
	}
	return append(all, &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "team-a"},
		Spec:       v1.ServiceSpec{Selector: map[string]string{"app": "web"}},
	})
}

// boundClaims are names of persistent volume claims that are bound. The volumes of two of them can be used in one zone, that of
// "labelled" in the zones of its label, and that of "on-node" on the node of this hostname. Those of "limited" and
// "limited-too" have a driver that limits volumes on some nodes. "once" has the access mode ReadWriteOncePod.
var boundClaims = []string{"in-a", "in-b", "labelled", "on-node", "limited", "limited-too", "once"}

// unboundClaims are names of claims whose volume is created after the pod got a node: in some zones, or anywhere. "static" may be
// bound to an existing volume, and "selected" has a selected node.
var unboundClaims = []string{"static", "selected", "later", "later-1", "later-2", "later-3", "anywhere", "anywhere-1", "anywhere-2", "limited-later"}

// claims returns the names of the claims that pods use. "missing" does not exist.
func (c *Cluster) claims() []string {
	if c.OnlyBoundClaims {
		return append([]string{"missing"}, boundClaims...)
	}
	return slices.Concat([]string{"missing"}, boundClaims, unboundClaims)
}

// LimitedDriver is a CSI driver. CSINodes limit the number of its volumes.
const LimitedDriver = "limited.example.com"

// CSINode returns the CSINode of a node, which allows one to three volumes of [LimitedDriver], or has no limit.
func (c *Cluster) CSINode(node string) *storagev1.CSINode {
	driver := storagev1.CSINodeDriver{Name: LimitedDriver, NodeID: node}
	if c.Chance(70) {
		driver.Allocatable = &storagev1.VolumeNodeResources{Count: ptr.To(int32(1 + c.Rand.IntN(3)))}
	}
	return &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{driver}}}
}

// classes returns storage classes that create volumes in two zones, anywhere, with [LimitedDriver], and never.
func classes() (all []runtime.Object) {
	class := func(name, provisioner string, terms ...v1.TopologySelectorTerm) {
		all = append(all, &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner, AllowedTopologies: terms,
			VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
		})
	}
	class("local", "example.com/local", v1.TopologySelectorTerm{MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{
		{Key: v1.LabelTopologyZone, Values: []string{"a", "b"}},
	}})
	class("anywhere", "example.com/anywhere")
	class("limited", LimitedDriver)
	class("static", "kubernetes.io/no-provisioner")
	return all
}

// classOf returns the storage class of one of unboundClaims.
func classOf(claim string) string {
	for prefix, class := range map[string]string{"static": "static", "anywhere": "anywhere", "selected": "anywhere", "limited": "limited"} {
		if strings.HasPrefix(claim, prefix) {
			return class
		}
	}
	return "local"
}

// volumes returns storage classes, volumes and claims.
func volumes() []runtime.Object {
	all := classes()
	for _, namespace := range Namespaces {
		for _, name := range boundClaims {
			claim := newClaim(namespace, name)
			claim.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
			all = append(all, volumeFor(claim), claim)
		}
		for _, name := range unboundClaims {
			claim := newClaim(namespace, name)
			claim.Spec.StorageClassName = ptr.To(classOf(name))
			if name == "selected" {
				claim.Annotations = map[string]string{"volume.kubernetes.io/selected-node": "node-2"}
			}
			all = append(all, claim)
		}
		spare := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: namespace + "-spare"}}
		spare.Spec.StorageClassName, spare.Spec.AccessModes = "static", []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
		spare.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse("4Gi")}
		spare.Spec.NodeAffinity = requireLabel(v1.LabelTopologyZone, "b")
		spare.Status.Phase = v1.VolumeAvailable
		all = append(all, spare)
	}
	return all
}

// newClaim returns a claim for one GiB.
func newClaim(namespace, name string) *v1.PersistentVolumeClaim {
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, UID: types.UID(namespace + name)}}
	claim.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
	if name == "once" {
		claim.Spec.AccessModes[0] = v1.ReadWriteOncePod
	}
	claim.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	return claim
}

// requireLabel returns a node affinity for nodes whose label has a value.
func requireLabel(key, value string) *v1.VolumeNodeAffinity {
	return &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
		MatchExpressions: []v1.NodeSelectorRequirement{{Key: key, Operator: v1.NodeSelectorOpIn, Values: []string{value}}},
	}}}}
}

// volumeFor returns a volume, to which it binds a claim.
func volumeFor(claim *v1.PersistentVolumeClaim) *v1.PersistentVolume {
	volume := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: claim.Namespace + "-" + claim.Name}}
	volume.Spec.ClaimRef = &v1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
	volume.Spec.AccessModes = claim.Spec.AccessModes
	switch {
	case strings.HasPrefix(claim.Name, "in-"):
		volume.Spec.NodeAffinity = requireLabel(v1.LabelTopologyZone, claim.Name[len("in-"):])
	case claim.Name == "labelled":
		volume.Labels = map[string]string{v1.LabelFailureDomainBetaZone: "b__c"}
	case claim.Name == "on-node":
		volume.Spec.NodeAffinity = requireLabel(v1.LabelHostname, "node-3")
	case strings.HasPrefix(claim.Name, "limited"):
		volume.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: LimitedDriver, VolumeHandle: volume.Name}
	}
	claim.Spec.VolumeName = volume.Name
	claim.Status.Phase = v1.ClaimBound
	return volume
}

// Volume returns a new volume for a claim, to which it binds the claim. Some of these volumes can be used in one zone or rack.
func Volume(r *rand.Rand, claim *v1.PersistentVolumeClaim) *v1.PersistentVolume {
	volume := volumeFor(claim)
	switch r.IntN(3) {
	case 0:
		volume.Spec.NodeAffinity = requireLabel(v1.LabelTopologyZone, Pick(r, zones))
	case 1:
		volume.Spec.NodeAffinity = requireLabel("rack", strconv.Itoa(r.IntN(5)))
	}
	return volume
}

// budgets returns two pod disruption budgets: one allows no disruption, one allows one.
func budgets() (all []runtime.Object) {
	for i, app := range Apps[:2] {
		budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: app, Namespace: "default"}}
		budget.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
		budget.Status.DisruptionsAllowed = int32(i)
		all = append(all, budget)
	}
	return all
}
