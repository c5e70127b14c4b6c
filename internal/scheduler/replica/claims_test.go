package replica

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// eachClient calls create with the client of each replica.
func (g *group) eachClient(create func(kubernetes.Interface) error) {
	g.T.Helper()
	for _, r := range g.replicas {
		g.Must(create(r.sched.Profiles[v1.DefaultSchedulerName].ClientSet()))
	}
}

// TestReplicasScheduleResourceOfDeviceClass has a pod that requests an extended resource for which a DeviceClass
// exists. Upstream allocates a device for it, which the index does not do.
func TestReplicasScheduleResourceOfDeviceClass(t *testing.T) {
	g := newGroup(t, 3, schedtest.PlainNode("without", "64"), schedtest.PlainNode("with", "4"))
	class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}, Spec: resourcev1.DeviceClassSpec{ExtendedResourceName: ptr.To("example.com/gpu")}}
	slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "with"}, Spec: resourcev1.ResourceSliceSpec{
		Driver: "example.com", NodeName: ptr.To("with"), Pool: resourcev1.ResourcePool{Name: "with", ResourceSliceCount: 1}, Devices: []resourcev1.Device{{Name: "gpu-0"}},
	}}
	g.eachClient(func(client kubernetes.Interface) error {
		if _, err := client.ResourceV1().ResourceSlices().Create(g.Ctx, slice.DeepCopy(), metav1.CreateOptions{}); err != nil {
			return err
		}
		_, err := client.ResourceV1().DeviceClasses().Create(g.Ctx, class.DeepCopy(), metav1.CreateOptions{})
		return err
	})
	pod := schedtest.PlainPod("pod", "1")
	pod.Spec.Containers[0].Resources.Requests["example.com/gpu"] = schedtest.Quantity("1")
	g.API.Put(pod)
	g.AwaitBound("pod")
	if node := g.API.Pod("default/pod").Spec.NodeName; node != "with" {
		t.Errorf("the pod is bound to node %s, want the node with the device", node)
	}
}

// TestReplicasScheduleFreeReadWriteOncePodClaim has a pod with two claims: a shared one that another pod uses, and
// one with the access mode ReadWriteOncePod that no pod uses.
func TestReplicasScheduleFreeReadWriteOncePodClaim(t *testing.T) {
	g := newGroup(t, 3, schedtest.PlainNode("a", "4"), schedtest.PlainNode("b", "4"))
	for name, mode := range map[string]v1.PersistentVolumeAccessMode{"shared": v1.ReadWriteMany, "once": v1.ReadWriteOncePod} {
		claim := &v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes"}},
			Spec:       v1.PersistentVolumeClaimSpec{AccessModes: []v1.PersistentVolumeAccessMode{mode}, VolumeName: name},
			Status:     v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound},
		}
		volume := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PersistentVolumeSpec{
			AccessModes: claim.Spec.AccessModes, ClaimRef: &v1.ObjectReference{Namespace: "default", Name: name, UID: claim.UID},
		}}
		g.eachClient(func(client kubernetes.Interface) error {
			if _, err := client.CoreV1().PersistentVolumes().Create(g.Ctx, volume.DeepCopy(), metav1.CreateOptions{}); err != nil {
				return err
			}
			_, err := client.CoreV1().PersistentVolumeClaims("default").Create(g.Ctx, claim.DeepCopy(), metav1.CreateOptions{})
			return err
		})
	}
	put := func(name string, claims ...string) {
		pod := schedtest.PlainPod(name, "1")
		for i, claim := range claims {
			pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: fmt.Sprint("volume-", i), VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}})
		}
		g.API.Put(pod)
	}
	put("user", "shared")
	g.AwaitBound("user")
	put("pod", "shared", "once")
	g.AwaitBound("pod")
}
