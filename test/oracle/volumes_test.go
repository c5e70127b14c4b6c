package oracle

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// claims are names of persistent volume claims. Two are bound to volumes in a zone, "labeled" to a volume whose
// label names its zone, three have the access mode ReadWriteOncePod, "shared" is bound to a volume that any node can
// use, "later" waits for its first consumer, and "missing" does not exist.
var claims = []string{"in-a", "in-b", "labeled", "once", "once-too", "once-more", "shared", "later", "missing"}

// freshClaim is the start of the names of claims that were created for one pod.
const freshClaim = "fresh-"

// addVolumes creates a storage class, and claims and volumes in each namespace.
func (w *world) addVolumes() {
	class := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: "kubernetes.io/no-provisioner",
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	}
	_, err := w.client.StorageV1().StorageClasses().Create(w.ctx, class, metav1.CreateOptions{})
	w.must(err)
	w.addDynamicClass()
	for _, namespace := range namespaces {
		for _, name := range claims[:len(claims)-1] {
			w.addClaim(namespace, name)
		}
		// The claim "later" can be bound to this volume.
		w.addVolume(namespace+"-spare", pick(w, zones...), nil, "local")
	}
}

// addClaim creates a claim and, unless it waits for its first consumer, a volume to which it is bound.
func (w *world) addClaim(namespace, name string) {
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}}
	claim.Spec.AccessModes = accessModes(name)
	claim.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: quantity("1Gi")}
	claim.Spec.StorageClassName = ptr.To("")
	if name == "later" {
		claim.Spec.StorageClassName = ptr.To("local")
	} else {
		claim.Spec.VolumeName = namespace + "-" + name
	}
	claim, err := w.client.CoreV1().PersistentVolumeClaims(namespace).Create(w.ctx, claim, metav1.CreateOptions{})
	w.must(err)
	if name != "later" {
		zone, _ := strings.CutPrefix(name, "in-")
		w.addVolume(claim.Spec.VolumeName, zone, claim, "")
	}
}

func accessModes(claim string) []v1.PersistentVolumeAccessMode {
	if strings.HasPrefix(claim, "once") {
		return []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
	}
	return []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
}

// addVolume creates a volume, for a claim if it is not nil. If zone is a zone, or "labeled", only nodes of a zone
// can use the volume.
func (w *world) addVolume(name, zone string, claim *v1.PersistentVolumeClaim, class string) {
	volume := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
	volume.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: quantity("1Gi")}
	volume.Spec.AccessModes, volume.Spec.StorageClassName = accessModes(""), class
	volume.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimRetain
	volume.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: volumeDriver, VolumeHandle: name}
	if claim != nil {
		volume.Spec.AccessModes = claim.Spec.AccessModes
		volume.Spec.ClaimRef = &v1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
	}
	if zone == "labeled" {
		volume.Labels = map[string]string{v1.LabelTopologyZone: pick(w, zones...)}
	}
	if len(zone) == 1 {
		volume.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelTopologyZone, Operator: v1.NodeSelectorOpIn, Values: []string{zone}}},
		}}}}
	}
	_, err := w.client.CoreV1().PersistentVolumes().Create(w.ctx, volume, metav1.CreateOptions{})
	w.must(err)
}

// awaitClaims waits until the controller has bound all claims that do not wait for their first consumer.
func (w *world) awaitClaims() {
	eventually(w.t, commandTimeout, "volume claims are bound", func() error {
		list, err := w.client.CoreV1().PersistentVolumeClaims("").List(w.ctx, metav1.ListOptions{})
		w.must(err)
		for _, claim := range list.Items {
			if claim.Status.Phase != v1.ClaimBound && claim.Spec.VolumeName != "" {
				return errNotBound(claim)
			}
		}
		return nil
	})
}
