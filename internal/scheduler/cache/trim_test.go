package cache

import (
	"fmt"
	"reflect"
	"testing"
	"unsafe"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func requests(cpu, memory string) v1.ResourceList {
	return v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory)}
}

// webPod returns a new pod of a Deployment as an API server sends it.
func webPod(number int, node string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("web-%d", number), Namespace: "default", Labels: map[string]string{"app": "web"},
			Annotations:   map[string]string{v1.LastAppliedConfigAnnotation: "{}", "kept": "yes"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet"}},
		},
		Spec: v1.PodSpec{
			NodeName: node,
			Containers: []v1.Container{{
				Name: "main", Image: "nginx", Command: []string{"run"}, Env: []v1.EnvVar{{Name: "A", Value: "b"}},
				Resources:     v1.ResourceRequirements{Requests: requests("100m", "1Gi"), Limits: requests("1", "2Gi")},
				Ports:         []v1.ContainerPort{{HostPort: 80}},
				LivenessProbe: &v1.Probe{PeriodSeconds: 10},
				VolumeMounts:  []v1.VolumeMount{{Name: "token"}, {Name: "data", BindMountOptions: []string{"noexec"}}},
			}},
			Tolerations: []v1.Toleration{{Key: "spot", Operator: v1.TolerationOpExists}},
		},
		Status: v1.PodStatus{
			PodIP: "10.0.0.1", ContainerStatuses: []v1.ContainerStatus{{Name: "main", ImageID: "sha256:1"}},
			Conditions: []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse}},
		},
	}
}

func TestTrimKeepsFieldsThatSchedulingUses(t *testing.T) {
	want := webPod(1, "a")
	want.ManagedFields, want.Annotations = nil, map[string]string{"kept": "yes"}
	main := &want.Spec.Containers[0]
	main.Command, main.Env, main.LivenessProbe, main.VolumeMounts = nil, nil, nil, main.VolumeMounts[1:]
	want.Status.PodIP, want.Status.ContainerStatuses = "", nil
	got := webPod(1, "a")
	NewTrimmer().pod(got)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("trimmed pod = %+v, want %+v", got, want)
	}
}

func TestTrimKeepsDriversOfCSINodes(t *testing.T) {
	const migrated = "storage.alpha.kubernetes.io/migrated-plugins"
	node := func() *storagev1.CSINode {
		return &storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{migrated: "kubernetes.io/aws-ebs"}},
			Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{
				Name: "ebs.csi.aws.com", NodeID: "i-1", TopologyKeys: []string{"zone"},
				Allocatable: &storagev1.VolumeNodeResources{Count: new(int32(25))},
			}}},
		}
	}
	object := node()
	object.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
	object.OwnerReferences = []metav1.OwnerReference{{Kind: "Node", Name: "a"}}
	got, err := NewTrimmer().Transform(object)
	if want := node(); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("trimmed CSINode = %+v, %v, want %+v", got, err, want)
	}
}

// TestTrimmedPodsShareEqualParts checks that pods of a Deployment share their containers but not
// the node name, and that the number of remembered specs is bounded.
func TestTrimmedPodsShareEqualParts(t *testing.T) {
	trimmer := NewTrimmer()
	a, b, other := webPod(1, "a"), webPod(2, "b"), webPod(3, "c")
	other.Spec.Containers[0].Image = "redis"
	for _, pod := range []*v1.Pod{a, b, other} {
		trimmer.pod(pod)
	}
	if unsafe.SliceData(a.Spec.Containers) != unsafe.SliceData(b.Spec.Containers) {
		t.Error("two pods of a Deployment do not share their containers")
	}
	if a.Spec.NodeName != "a" || b.Spec.NodeName != "b" {
		t.Errorf("node names = %s and %s, want a and b", a.Spec.NodeName, b.Spec.NodeName)
	}
	if other.Spec.Containers[0].Image != "redis" || a.Spec.Containers[0].Image != "nginx" {
		t.Errorf("images = %s and %s, want redis and nginx", other.Spec.Containers[0].Image, a.Spec.Containers[0].Image)
	}
	for number := range 2 * maxShared {
		pod := webPod(number, "a")
		pod.Spec.Containers[0].Image = fmt.Sprint(number)
		trimmer.pod(pod)
	}
	if specs := len(trimmer.specs); specs > maxShared {
		t.Errorf("the trimmer remembers %d specs, want at most %d", specs, maxShared)
	}
}

// TestTrimKeepsAllocatedResources checks that the container statuses of a resized pod are kept.
func TestTrimKeepsAllocatedResources(t *testing.T) {
	pod := webPod(1, "a")
	pod.Status.ContainerStatuses[0].AllocatedResources = requests("2", "4Gi")
	NewTrimmer().pod(pod)
	if len(pod.Status.ContainerStatuses) != 1 || !StatusCounts(pod) {
		t.Errorf("container statuses = %+v, want one with allocated resources", pod.Status.ContainerStatuses)
	}
}

// TestTrimmedNodesShareEqualParts checks which fields of a node are kept, and that equal nodes
// share their resource lists.
func TestTrimmedNodesShareEqualParts(t *testing.T) {
	newNode := func(name string) *v1.Node {
		return &v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name, "disk": "ssd"}},
			Spec:       v1.NodeSpec{PodCIDR: "10.0.0.0/24", Taints: []v1.Taint{{Key: "spot"}}},
			Status: v1.NodeStatus{
				Allocatable: requests("4", "8Gi"), NodeInfo: v1.NodeSystemInfo{KernelVersion: "6"},
				Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, LastHeartbeatTime: metav1.Now()}},
				Images:     []v1.ContainerImage{{Names: []string{"nginx"}, SizeBytes: 1}},
			},
		}
	}
	trimmer := NewTrimmer()
	a, b := newNode("a"), newNode("b")
	trimmer.node(a)
	trimmer.node(b)
	want := newNode("a")
	want.Spec.PodCIDR, want.Status.NodeInfo, want.Status.Conditions[0].LastHeartbeatTime = "", v1.NodeSystemInfo{}, metav1.Time{}
	if !reflect.DeepEqual(a, want) {
		t.Errorf("trimmed node = %+v, want %+v", a, want)
	}
	if reflect.ValueOf(a.Status.Allocatable).Pointer() != reflect.ValueOf(b.Status.Allocatable).Pointer() {
		t.Error("two nodes with equal allocatable resources do not share the resource list")
	}
}
