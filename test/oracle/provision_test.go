package oracle

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// volumeDriver is the CSI driver of all volumes.
const volumeDriver = "volumes.example.com"

// dynamicClass is a storage class whose volumes are made after a node was chosen, in one of two zones.
const dynamicClass = "dynamic"

// addDynamicClass creates the storage class dynamicClass.
func (w *world) addDynamicClass() {
	class := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: dynamicClass}, Provisioner: volumeDriver,
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
		AllowedTopologies: []v1.TopologySelectorTerm{{MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{
			{Key: v1.LabelTopologyZone, Values: []string{"a", "b"}},
		}}},
	}
	_, err := w.client.StorageV1().StorageClasses().Create(w.ctx, class, metav1.CreateOptions{})
	w.must(err)
}

// addFreshClaim creates a claim of the class dynamicClass and returns its name.
func (w *world) addFreshClaim(namespace string) string {
	w.lastNumber++
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s%d", freshClaim, w.lastNumber), Namespace: namespace}}
	claim.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	claim.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: quantity("1Gi")}
	claim.Spec.StorageClassName = ptr.To(dynamicClass)
	_, err := w.client.CoreV1().PersistentVolumeClaims(namespace).Create(w.ctx, claim, metav1.CreateOptions{})
	w.must(err)
	return claim.Name
}

// actAsProvisioner creates volumes for the claims for which the scheduler has chosen a node.
func (w *world) actAsProvisioner() {
	list, err := w.client.CoreV1().PersistentVolumeClaims("").List(w.ctx, metav1.ListOptions{})
	w.must(err)
	for i := range list.Items {
		claim := &list.Items[i]
		name := claim.Namespace + "-" + claim.Name
		if claim.Annotations["volume.kubernetes.io/selected-node"] == "" || *claim.Spec.StorageClassName != dynamicClass || w.provisioned[name] {
			continue
		}
		w.provisioned[name] = true
		w.addVolume(name, "", claim, dynamicClass)
	}
}

// limitVolumes limits how many volumes a node can attach.
func (w *world) limitVolumes(node string) {
	csiNode := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node}}
	csiNode.Spec.Drivers = []storagev1.CSINodeDriver{{
		Name: volumeDriver, NodeID: node, Allocatable: &storagev1.VolumeNodeResources{Count: ptr.To(int32(1 + w.rand.IntN(2)))},
	}}
	if _, err := w.client.StorageV1().CSINodes().Create(w.ctx, csiNode, metav1.CreateOptions{}); !exists(err) {
		w.must(err)
	}
}
