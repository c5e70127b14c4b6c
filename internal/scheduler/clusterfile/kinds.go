package clusterfile

import (
	"context"
	"reflect"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
)

// kind is a kind of object that schedulers read.
type kind struct {
	name, apiVersion string
	// resource is the name of the resource for kubectl. storage is its path in a store below the prefix of all keys.
	resource, storage string
	namespaced        bool
	example           runtime.Object
	list              func(context.Context, kubernetes.Interface, metav1.ListOptions) (runtime.Object, error)
}

// all is the namespace of lists of all namespaces.
const all = metav1.NamespaceAll

// kinds are all kinds, in the order in which a scheduler should get their objects.
var kinds = []kind{
	{"Namespace", "v1", "namespaces", "namespaces", false, &v1.Namespace{}, func(ctx context.Context, c kubernetes.Interface, o metav1.ListOptions) (runtime.Object, error) {
		return c.CoreV1().Namespaces().List(ctx, o)
	}},
	{"PriorityClass", "scheduling.k8s.io/v1", "priorityclasses", "priorityclasses", false, &schedulingv1.PriorityClass{}, func(ctx context.Context, c kubernetes.Interface, o metav1.ListOptions) (runtime.Object, error) {
		return c.SchedulingV1().PriorityClasses().List(ctx, o)
	}},
	{"StorageClass", "storage.k8s.io/v1", "storageclasses", "storageclasses", false, &storagev1.StorageClass{}, func(ctx context.Context, c kubernetes.Interface, o metav1.ListOptions) (runtime.Object, error) {
		return c.StorageV1().StorageClasses().List(ctx, o)
	}},
	{"CSIDriver", "storage.k8s.io/v1", "csidrivers", "csidrivers", false, &storagev1.CSIDriver{}, func(ctx context.Context, c kubernetes.Interface, o metav1.ListOptions) (runtime.Object, error) {
		return c.StorageV1().CSIDrivers().List(ctx, o)
	}},
	{"CSINode", "storage.k8s.io/v1", "csinodes", "csinodes", false, &storagev1.CSINode{}, func(ctx context.Context, c kubernetes.Interface, o metav1.ListOptions) (runtime.Object, error) {
		return c.StorageV1().CSINodes().List(ctx, o)
	}},
	{"CSIStorageCapacity", "storage.k8s.io/v1", "csistoragecapacities", "csistoragecapacities", true, &storagev1.CSIStorageCapacity{}, func(ctx context.Context, c kubernetes.Interface, o metav1.ListOptions) (runtime.Object, error) {
		return c.StorageV1().CSIStorageCapacities(all).List(ctx, o)
	}},
	{"VolumeAttachment", "storage.k8s.io/v1", "volumeattachments", "volumeattachments", false, &storagev1.VolumeAttachment{}, func(ctx context.Context, c kubernetes.Interface, o metav1.ListOptions) (runtime.Object, error) {
		return c.StorageV1().VolumeAttachments().List(ctx, o)
	}},
	{"DeviceClass", "resource.k8s.io/v1", "deviceclasses", "deviceclasses", false, &resourcev1.DeviceClass{}, func(ctx context.Context, c kubernetes.Interface, o metav1.ListOptions) (runtime.Object, error) {
		return c.ResourceV1().DeviceClasses().List(ctx, o)
	}},
	{"DeviceTaintRule", "resource.k8s.io/v1", "devicetaintrules", "devicetaintrules", false, &resourcev1.DeviceTaintRule{}, func(ctx context.Context, c kubernetes.Interface, o metav1.ListOptions) (runtime.Object, error) {
		return c.ResourceV1().DeviceTaintRules().List(ctx, o)
	}},
	{"ResourceSlice", "resource.k8s.io/v1", "resourceslices", "resourceslices", false, &resourcev1.ResourceSlice{}, func(ctx context.Context, c kubernetes.Interface, o metav1.ListOptions) (runtime.Object, error) {
		return c.ResourceV1().ResourceSlices().List(ctx, o)
	}},
	{"ResourceClaim", "resource.k8s.io/v1", "resourceclaims", "resourceclaims", true, &resourcev1.ResourceClaim{}, func(ctx context.Context, c kubernetes.Interface, o metav1.ListOptions) (runtime.Object, error) {
		return c.ResourceV1().ResourceClaims(all).List(ctx, o)
	}},
	{"PersistentVolume", "v1", "persistentvolumes", "persistentvolumes", false, &v1.PersistentVolume{}, func(ctx context.Context, c kubernetes.Interface, o metav1.ListOptions) (runtime.Object, error) {
		return c.CoreV1().PersistentVolumes().List(ctx, o)
	}},
	{"PersistentVolumeClaim", "v1", "persistentvolumeclaims", "persistentvolumeclaims", true, &v1.PersistentVolumeClaim{}, func(ctx context.Context, c kubernetes.Interface, o metav1.ListOptions) (runtime.Object, error) {
		return c.CoreV1().PersistentVolumeClaims(all).List(ctx, o)
	}},
	{"Service", "v1", "services", "services/specs", true, &v1.Service{}, func(ctx context.Context, c kubernetes.Interface, o metav1.ListOptions) (runtime.Object, error) {
		return c.CoreV1().Services(all).List(ctx, o)
	}},
	{"ReplicationController", "v1", "replicationcontrollers", "controllers", true, &v1.ReplicationController{}, func(ctx context.Context, c kubernetes.Interface, o metav1.ListOptions) (runtime.Object, error) {
		return c.CoreV1().ReplicationControllers(all).List(ctx, o)
	}},
	{"ReplicaSet", "apps/v1", "replicasets", "replicasets", true, &appsv1.ReplicaSet{}, func(ctx context.Context, c kubernetes.Interface, o metav1.ListOptions) (runtime.Object, error) {
		return c.AppsV1().ReplicaSets(all).List(ctx, o)
	}},
	{"StatefulSet", "apps/v1", "statefulsets", "statefulsets", true, &appsv1.StatefulSet{}, func(ctx context.Context, c kubernetes.Interface, o metav1.ListOptions) (runtime.Object, error) {
		return c.AppsV1().StatefulSets(all).List(ctx, o)
	}},
	{"PodDisruptionBudget", "policy/v1", "poddisruptionbudgets", "poddisruptionbudgets", true, &policyv1.PodDisruptionBudget{}, func(ctx context.Context, c kubernetes.Interface, o metav1.ListOptions) (runtime.Object, error) {
		return c.PolicyV1().PodDisruptionBudgets(all).List(ctx, o)
	}},
	{"Node", "v1", "nodes", "minions", false, &v1.Node{}, func(ctx context.Context, c kubernetes.Interface, o metav1.ListOptions) (runtime.Object, error) {
		return c.CoreV1().Nodes().List(ctx, o)
	}},
	{"Pod", "v1", "pods", "pods", true, &v1.Pod{}, func(ctx context.Context, c kubernetes.Interface, o metav1.ListOptions) (runtime.Object, error) {
		return c.CoreV1().Pods(all).List(ctx, o)
	}},
}

var (
	kindByType = map[reflect.Type]*kind{}
	kindByName = map[string]*kind{}
)

func init() {
	for i := range kinds {
		kindByType[reflect.TypeOf(kinds[i].example)] = &kinds[i]
		kindByName[kinds[i].name] = &kinds[i]
	}
}

// kindOf returns the kind of an object; nil if no scheduler reads it.
func kindOf(object runtime.Object) *kind { return kindByType[reflect.TypeOf(object)] }

// isRead returns whether schedulers read objects of a kind. Its version may be another one.
func isRead(gvk schema.GroupVersionKind) bool {
	k := kindByName[gvk.Kind]
	return k != nil && schema.FromAPIVersionAndKind(k.apiVersion, k.name).Group == gvk.Group
}

// Examples returns an empty object of each kind.
func Examples() []runtime.Object {
	examples := make([]runtime.Object, len(kinds))
	for i := range kinds {
		examples[i] = kinds[i].example.DeepCopyObject()
	}
	return examples
}

// Resources returns the names of all resources that a scheduler reads, as an argument of `kubectl get`.
func Resources() string {
	names := make([]string, len(kinds))
	for i := range kinds {
		names[i] = kinds[i].resource
	}
	return strings.Join(names, ",")
}
