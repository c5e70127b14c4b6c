package inmemory

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	storagehelpers "k8s.io/component-helpers/storage/volume"
)

const (
	// volumesPerNode is the limit of volumes of each node for the kind NewVolume.
	volumesPerNode = 25
	// devicesPerNode is the number of devices of each node for the kind Device.
	devicesPerNode = 8

	volumeDriver, deviceDriver, deviceClass = "volumes.example.com", "gpu.example.com", "gpu"
)

// storage are the objects that volumes refer to.
type storage struct {
	volumes        []*v1.PersistentVolume
	volumeClaims   []*v1.PersistentVolumeClaim
	storageClasses []*storagev1.StorageClass
	csiNodes       []*storagev1.CSINode
}

// devices are the objects that resource claims refer to.
type devices struct {
	deviceClasses  []*resourcev1.DeviceClass
	slices         []*resourcev1.ResourceSlice
	resourceClaims []*resourcev1.ResourceClaim
}

// addBoundVolumes gives each pod a claim that is bound to a volume in a zone.
func (w *workload) addBoundVolumes(o Options) {
	for number := range o.Pods {
		claim := newVolumeClaim(number)
		zone := fmt.Sprintf("zone-%d", number%o.Zones)
		w.volumes = append(w.volumes, bindClaim(claim, zone))
		w.volumeClaims = append(w.volumeClaims, claim)
	}
	w.fillWithClaims()
}

// addNewVolumes gives each pod a claim whose volume is created on the node of the pod. Each node limits the number of its volumes.
func (w *workload) addNewVolumes(o Options) {
	mode, limit := storagev1.VolumeBindingWaitForFirstConsumer, int32(volumesPerNode)
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "new"}, Provisioner: volumeDriver, VolumeBindingMode: &mode}
	w.storageClasses = append(w.storageClasses, class)
	for number := range o.Pods {
		claim := newVolumeClaim(number)
		claim.Spec.StorageClassName = &class.Name
		w.volumeClaims = append(w.volumeClaims, claim)
	}
	for i := range o.Nodes {
		w.csiNodes = append(w.csiNodes, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)}, Spec: storagev1.CSINodeSpec{
			Drivers: []storagev1.CSINodeDriver{{Name: volumeDriver, NodeID: nodeName(i), Allocatable: &storagev1.VolumeNodeResources{Count: &limit}}},
		}})
	}
	w.fillWithClaims()
}

// fillWithClaims makes each pod use the volume claim of its name.
func (w *workload) fillWithClaims() {
	base := newTemplate("100m", "128Mi")
	w.fill = func(pod *v1.Pod, _ int) {
		base.apply(pod)
		pod.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: pod.Name},
		}}}
	}
}

// newVolumeClaim returns the claim of a pod for one GiB.
func newVolumeClaim(number int) *v1.PersistentVolumeClaim {
	name, class := podName(number), ""
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name), ResourceVersion: "1"},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, StorageClassName: &class,
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
}

// bindClaim binds a claim to a new volume, and returns the volume. If zone is not "", only nodes of the zone can use it.
func bindClaim(claim *v1.PersistentVolumeClaim, zone string) *v1.PersistentVolume {
	volume := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "volume-" + claim.Name, ResourceVersion: "1"},
		Spec: v1.PersistentVolumeSpec{
			AccessModes: claim.Spec.AccessModes, Capacity: claim.Spec.Resources.Requests, StorageClassName: *claim.Spec.StorageClassName,
			ClaimRef: &v1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
		},
	}
	volume.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: volumeDriver, VolumeHandle: volume.Name}
	if zone != "" {
		volume.Labels = map[string]string{v1.LabelTopologyZone: zone}
		volume.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelTopologyZone, Operator: v1.NodeSelectorOpIn, Values: []string{zone}}},
		}}}}
	}
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, storagehelpers.AnnBindCompleted, "yes")
	claim.Spec.VolumeName, claim.Status.Phase = volume.Name, v1.ClaimBound
	return volume
}

// addDevices gives each node devices, and each pod a claim for one of them.
func (w *workload) addDevices(o Options) {
	w.deviceClasses = append(w.deviceClasses, &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: deviceClass}, Spec: resourcev1.DeviceClassSpec{
		Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", deviceDriver)}}},
	}})
	owned := make([]resourcev1.Device, devicesPerNode)
	for i := range owned {
		owned[i].Name = fmt.Sprintf("gpu-%d", i)
	}
	for i := range o.Nodes {
		name := nodeName(i)
		w.slices = append(w.slices, &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourcev1.ResourceSliceSpec{
			Driver: deviceDriver, NodeName: &name, Pool: resourcev1.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: 1}, Devices: owned,
		}})
	}
	for number := range o.Pods {
		name := podName(number)
		w.resourceClaims = append(w.resourceClaims, &resourcev1.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name), ResourceVersion: "1"},
			Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
				Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: deviceClass, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1},
			}}}},
		})
	}
	base := newTemplate("100m", "128Mi")
	w.fill = func(pod *v1.Pod, _ int) {
		base.apply(pod)
		claim := pod.Name
		pod.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim}}
	}
}
