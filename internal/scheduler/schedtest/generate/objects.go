package generate

import (
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
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

// allClaims are names of persistent volume claims. Two are bound to volumes in a zone, "later" waits
// for its first consumer, "once" has the access mode ReadWriteOncePod, and "missing" does not
// exist.
var allClaims = []string{"in-a", "in-b", "later", "once", "missing"}

// claims returns the names of the claims that pods use.
func (c *Cluster) claims() []string {
	if c.OnlyBoundClaims {
		return []string{"in-a", "in-b", "once", "missing"}
	}
	return allClaims
}

// volumes returns a storage class, volumes and claims.
func volumes() []runtime.Object {
	all := []runtime.Object{&storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: "example.com/local",
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
		AllowedTopologies: []v1.TopologySelectorTerm{{MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{
			{Key: v1.LabelTopologyZone, Values: []string{"a", "b"}},
		}}},
	}}
	for _, namespace := range Namespaces {
		for _, name := range allClaims[:4] {
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
				all = append(all, volumeFor(claim))
			}
			all = append(all, claim)
		}
	}
	return all
}

// volumeFor returns a volume, to which it binds a claim.
func volumeFor(claim *v1.PersistentVolumeClaim) *v1.PersistentVolume {
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
