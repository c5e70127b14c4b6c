package replica

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// deviceSlice returns a ResourceSlice with one device on a node.
func deviceSlice(node string) *resourcev1.ResourceSlice {
	return &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: resourcev1.ResourceSliceSpec{
		Driver: "example.com", NodeName: ptr.To(node), Pool: resourcev1.ResourcePool{Name: node, ResourceSliceCount: 1},
		Devices: []resourcev1.Device{{Name: "gpu-0"}},
	}}
}

// deviceClaim returns a claim for one device of the class gpu.
func deviceClaim(selectors ...resourcev1.DeviceSelector) *resourcev1.ResourceClaim {
	request := resourcev1.DeviceRequest{Name: "request", Exactly: &resourcev1.ExactDeviceRequest{
		DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1, Selectors: selectors,
	}}
	return &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "claim", UID: "claim"}, Spec: resourcev1.ResourceClaimSpec{
		Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{request}},
	}}
}

// createDevices creates the class gpu, a claim, and a device on each of the nodes, and waits until the informers of
// all replicas have them.
func (g *group) createDevices(claim *resourcev1.ResourceClaim, nodes ...string) {
	g.T.Helper()
	g.eachClient(func(client kubernetes.Interface) error {
		for _, node := range nodes {
			if _, err := client.ResourceV1().ResourceSlices().Create(g.Ctx, deviceSlice(node), metav1.CreateOptions{}); err != nil {
				return err
			}
		}
		if _, err := client.ResourceV1().DeviceClasses().Create(g.Ctx, &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}, metav1.CreateOptions{}); err != nil {
			return err
		}
		_, err := client.ResourceV1().ResourceClaims("default").Create(g.Ctx, claim.DeepCopy(), metav1.CreateOptions{})
		return err
	})
	g.Eventually("the informers have the devices", func() error {
		for _, r := range g.replicas {
			resources := r.informers.Resource().V1()
			slices, classes, claims := resources.ResourceSlices().Informer().GetStore(), resources.DeviceClasses().Informer().GetStore(), resources.ResourceClaims().Informer().GetStore()
			if len(slices.ListKeys()) < len(nodes) || len(classes.ListKeys()) == 0 || len(claims.ListKeys()) == 0 {
				return fmt.Errorf("%s lacks an object", r.options.Self.Name)
			}
		}
		return nil
	})
}

// claimingPod returns a pod with the claim.
func claimingPod(name string) *v1.Pod {
	pod := schedtest.PlainPod(name, "1")
	pod.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "claim", ResourceClaimName: ptr.To("claim")}}
	return pod
}

// nodeNames returns the name of a node that the leader, replica-0, does not own, and of one that it owns.
func (g *group) nodeNames() (remote, own string) {
	for i := 0; remote == "" || own == ""; i++ {
		name := fmt.Sprintf("node-%d", i)
		if g.replicas[0].member.Trusts("replica-0", schedtest.PlainNode(name, "1").UID) {
			own = name
		} else {
			remote = name
		}
	}
	return remote, own
}

// TestFilterErrorFailsOnlyItsPod has a pod with a claim whose selector fails when it is evaluated. Upstream fails this
// pod only. The owner of the node with the device must not count as late: plain pods prefer this node.
func TestFilterErrorFailsOnlyItsPod(t *testing.T) {
	g := newGroup(t, 2)
	preferred, other := g.nodeNames()
	node := schedtest.PlainNode(preferred, "64")
	node.Labels["preferred"] = "true"
	g.API.Put(node)
	g.API.Put(schedtest.PlainNode(other, "64"))
	g.createDevices(deviceClaim(resourcev1.DeviceSelector{CEL: &resourcev1.CELDeviceSelector{Expression: `device.attributes["example.com"].missing == "x"`}}), preferred)
	late := schedtest.CounterDelta(t, schedtest.CounterValue("scheduler_replica_late_answers_total", "replica-1"))
	g.API.Put(claimingPod("claiming"))
	g.Eventually("the pod has the error of the selector as a condition", func() error {
		for _, condition := range g.API.Pod("default/claiming").Status.Conditions {
			if condition.Reason == v1.PodReasonSchedulerError && strings.Contains(condition.Message, "no such key: missing") {
				return nil
			}
		}
		return fmt.Errorf("the conditions are %v", g.API.Pod("default/claiming").Status.Conditions)
	})
	for i := range 6 {
		name := fmt.Sprintf("plain-%d", i)
		plain := schedtest.PlainPod(name, "1")
		plain.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []v1.PreferredSchedulingTerm{{
			Weight:     100,
			Preference: v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{{Key: "preferred", Operator: v1.NodeSelectorOpExists}}},
		}}}}
		g.API.Put(plain)
		if node := g.AwaitBound(name); node != preferred {
			t.Errorf("pod %s is bound to node %s, want %s", name, node, preferred)
		}
		time.Sleep(100 * time.Millisecond)
	}
	if n := late(); n != 0 {
		t.Errorf("%v answers of the node's owner were counted as late, want none", n)
	}
}

// TestReplicasDeallocateClaim has a pod whose claim is allocated on a node that is full, as after a leader has ended
// between PreBind and Bind. Upstream's PostFilter deallocates the claim, so that the pod fits on another node.
func TestReplicasDeallocateClaim(t *testing.T) {
	g := newGroup(t, 2)
	full, free := g.nodeNames()
	for swap := range 2 {
		if swap == 1 {
			full, free = free, full
		}
		t.Run(fmt.Sprintf("the leader owns the free node: %v", swap == 0), func(t *testing.T) { testDeallocation(t, full, free) })
	}
}

// allocated returns a claim that is allocated on a node.
func allocated(claim *resourcev1.ResourceClaim, node string) *resourcev1.ResourceClaim {
	claim.Status.Allocation = &resourcev1.AllocationResult{
		Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{{Request: "request", Driver: "example.com", Pool: node, Device: "gpu-0"}}},
		NodeSelector: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchFields: []v1.NodeSelectorRequirement{{Key: "metadata.name", Operator: v1.NodeSelectorOpIn, Values: []string{node}}},
		}}},
	}
	return claim
}

func testDeallocation(t *testing.T, full, free string) {
	g := newGroup(t, 2, schedtest.PlainNode(full, "4"), schedtest.PlainNode(free, "4"))
	filler := schedtest.PlainPod("filler", "4")
	filler.Spec.NodeSelector = map[string]string{v1.LabelHostname: full}
	g.API.Put(filler)
	g.AwaitBound("filler")
	g.createDevices(allocated(deviceClaim(), full), full, free)
	g.API.Put(claimingPod("pod"))
	claims := g.replicas[0].sched.Profiles[v1.DefaultSchedulerName].ClientSet().ResourceV1().ResourceClaims("default")
	g.Eventually("the leader deallocates the claim", func() error {
		got, err := claims.Get(g.Ctx, "claim", metav1.GetOptions{})
		if err == nil && got.Status.Allocation != nil {
			return fmt.Errorf("it is allocated on the full node; the pod has conditions %v", g.API.Pod("default/pod").Status.Conditions)
		}
		return err
	})
}

// TestEventRetriesPodThatLeaderRejected has a node that only the leader's own plugins reject: its device belongs to
// another claim, which the owner does not know yet. The event that frees the device must retry the pod, although another plugin
// rejects the other node.
func TestEventRetriesPodThatLeaderRejected(t *testing.T) {
	g := newGroup(t, 2)
	node, small := g.nodeNames()
	g.API.Put(schedtest.PlainNode(node, "4"))
	g.API.Put(schedtest.PlainNode(small, "100m"))
	g.createDevices(deviceClaim(), node)
	other := allocated(deviceClaim(), node)
	other.Name, other.UID = "other", "other"
	claims := g.replicas[0].sched.Profiles[v1.DefaultSchedulerName].ClientSet().ResourceV1().ResourceClaims("default")
	_, err := claims.Create(g.Ctx, other, metav1.CreateOptions{})
	g.Must(err)
	g.Eventually("the leader has the other claim", func() error {
		_, err := g.replicas[0].informers.Resource().V1().ResourceClaims().Lister().ResourceClaims("default").Get("other")
		return err
	})
	g.API.Put(claimingPod("pod"))
	g.AwaitUnschedulable("pod")
	g.Must(claims.Delete(g.Ctx, "other", metav1.DeleteOptions{}))
	g.AwaitBound("pod")
}

// TestManyClaimsBeingBoundDoNotHideFreeNode has more nodes than queries for one pod whose devices belong to claims that
// only the leader knows, as while these are being bound. The pod is placed on the only other node, which has the worst score.
func TestManyClaimsBeingBoundDoNotHideFreeNode(t *testing.T) {
	g := newGroup(t, 2)
	var nodes []string
	for i := 0; len(nodes) < 20; i++ {
		name := fmt.Sprintf("node-%d", i)
		if g.replicas[0].member.Trusts("replica-0", schedtest.PlainNode(name, "1").UID) {
			continue
		}
		cpu := "64"
		if len(nodes) == 0 {
			cpu = "2"
		}
		g.API.Put(schedtest.PlainNode(name, cpu))
		nodes = append(nodes, name)
	}
	g.createDevices(deviceClaim(), nodes...)
	claims := g.replicas[0].sched.Profiles[v1.DefaultSchedulerName].ClientSet().ResourceV1().ResourceClaims("default")
	for _, node := range nodes[1:] {
		other := allocated(deviceClaim(), node)
		other.Name, other.UID = "claim-of-"+node, types.UID("claim-of-"+node)
		_, err := claims.Create(g.Ctx, other, metav1.CreateOptions{})
		g.Must(err)
	}
	g.Eventually("the leader has the other claims", func() error {
		if known := len(g.replicas[0].informers.Resource().V1().ResourceClaims().Informer().GetStore().ListKeys()); known < len(nodes) {
			return fmt.Errorf("it has %d claims", known)
		}
		// The events of the claims come later than the claims themselves.
		devices, err := g.replicas[0].sched.Profiles[v1.DefaultSchedulerName].SharedDRAManager().ResourceClaims().ListAllAllocatedDevices()
		if err == nil && len(devices) < len(nodes)-1 {
			err = fmt.Errorf("it knows %d devices that are allocated", len(devices))
		}
		return err
	})
	g.API.Put(claimingPod("pod"))
	if node := g.AwaitBound("pod"); node != nodes[0] {
		t.Errorf("the pod is bound to node %s, want %s, whose device is free", node, nodes[0])
	}
}

// TestEventBeforeOwnerRetriesPod has the event of a ResourceSlice reach the leader before the owner of the node. The
// pod is retried although the event was used up by an attempt for which the owner did not know the device yet.
func TestEventBeforeOwnerRetriesPod(t *testing.T) {
	g := newGroup(t, 2)
	node, _ := g.nodeNames()
	g.API.Put(schedtest.PlainNode(node, "4"))
	g.createDevices(deviceClaim())
	g.API.Put(claimingPod("pod"))
	g.AwaitUnschedulable("pod")
	create := func(r *testReplica) {
		slices := r.sched.Profiles[v1.DefaultSchedulerName].ClientSet().ResourceV1().ResourceSlices()
		_, err := slices.Create(g.Ctx, deviceSlice(node), metav1.CreateOptions{})
		g.Must(err)
	}
	create(g.replicas[0])
	const lag = 300 * time.Millisecond
	time.Sleep(lag)
	create(g.replicas[1])
	g.AwaitBound("pod")
}
