package replica

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/refresh"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest/generate"
)

// populate creates nodes and pods on them. Most worlds are crowded, so that preemption is frequent.
func (w *oracleWorld) populate() {
	nodes, pods := 3+w.Rand.IntN(6), 9
	if w.Chance(25) {
		nodes, pods = 10+w.Rand.IntN(15), 1
	}
	for range nodes {
		w.addNode()
		for range pods {
			w.addRunningPod()
		}
	}
}

// change makes a few random changes, and waits until all replicas have them.
func (w *oracleWorld) change() {
	for w.Chance(50) {
		switch n := w.Rand.IntN(100); {
		case n < 8:
			w.awaitEvent(w.addNode())
		case n < 14:
			w.removeNode()
		case n < 26:
			w.changeNode()
		case n < 42:
			w.removePod()
		case n < 60:
			w.changePod()
		case n < 82:
			w.nominate()
		case n < 94:
			w.renominate()
		default:
			w.withdraw()
		}
	}
	w.awaitCaughtUp()
}

// put stores a copy of an object in the API server, and returns its version.
func put[T interface {
	metav1.Object
	DeepCopy() T
}](w *oracleWorld, object T) string {
	stored := object.DeepCopy()
	w.API.Put(stored)
	return stored.GetResourceVersion()
}

func (w *oracleWorld) addNode() (uid types.UID, version string) {
	node := w.Node()
	node.UID = types.UID(node.Name)
	w.record("add %s", node.Name)
	w.setNode(node)
	return node.UID, put(w, node)
}

// setNode changes a node of the reference.
func (w *oracleWorld) setNode(node *v1.Node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.Nodes[node.Name] = node
}

// setPod changes a bound pod of the reference.
func (w *oracleWorld) setPod(pod *v1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.Pods[pod.UID] = pod
}

func (w *oracleWorld) removeNode() {
	node := w.RandomNode()
	if len(w.Nodes) < 3 {
		return
	}
	w.record("remove %s", node.Name)
	w.mu.Lock()
	delete(w.Nodes, node.Name)
	w.mu.Unlock()
	w.API.Remove(node)
	w.awaitEvent(node.UID, "")
}

func (w *oracleWorld) changeNode() {
	node := w.RandomNode()
	changed := w.ChangedNode(node)
	w.record("change %s", node.Name)
	w.setNode(changed)
	version := put(w, changed)
	if len(framework.NodeSchedulingPropertiesChange(changed, node)) > 0 {
		w.awaitEvent(node.UID, version)
	}
}

// addRunningPod creates a pod that is on a node without the help of a scheduler.
func (w *oracleWorld) addRunningPod() {
	pod := w.Pod()
	pod.Spec.NodeName = w.RandomNode().Name
	// Two pods with one host port are never on one node, and kube-scheduler forgets the port as soon as one of them
	// is gone.
	pod.Spec.Containers[0].Ports = nil
	// Two pods never use one claim with the access mode ReadWriteOncePod. Upstream's preemption would evict one of them
	// for a third, which the other one still keeps out.
	if usesOncePodClaim(pod) && slices.ContainsFunc(slices.Collect(maps.Values(w.Pods)), func(other *v1.Pod) bool {
		return other.Namespace == pod.Namespace && usesOncePodClaim(other)
	}) {
		pod.Spec.Volumes = nil
	}
	w.setPod(pod)
	put(w, pod)
}

// usesOncePodClaim returns whether a pod uses the claim of its namespace with the access mode ReadWriteOncePod.
func usesOncePodClaim(pod *v1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(volume v1.Volume) bool {
		return volume.PersistentVolumeClaim != nil && volume.PersistentVolumeClaim.ClaimName == "once"
	})
}

// existingPod returns a random bound pod whose node exists; nil if there is none.
func (w *oracleWorld) existingPod() *v1.Pod {
	if pod := w.RandomPod(); pod != nil && w.Nodes[pod.Spec.NodeName] != nil {
		return pod
	}
	return nil
}

func (w *oracleWorld) removePod() {
	if pod := w.existingPod(); pod != nil {
		w.record("remove %s", pod.Name)
		w.mu.Lock()
		delete(w.Pods, pod.UID)
		w.mu.Unlock()
		w.API.Remove(pod)
		w.awaitEvent(pod.UID, "")
	}
}

func (w *oracleWorld) changePod() {
	if pod := w.existingPod(); pod != nil {
		changed := w.ChangedPod(pod)
		w.record("change %s", pod.Name)
		w.setPod(changed)
		if version := put(w, changed); !cache.SameOnNode(pod, changed) {
			w.awaitEvent(pod.UID, version)
		}
	}
}

// nominate creates a pod that is nominated to a node, and that a gate holds back.
func (w *oracleWorld) nominate() {
	pod, node := w.Pod(), w.RandomNode()
	if rank.NamesNodes(&pod.Spec) || len(w.nominated) > 4 {
		// A pod that names nodes can only be nominated to a node that it names.
		return
	}
	pod.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "test"}}
	w.nominateTo(pod, node.Name)
	w.tally.nominated++
}

// nominateTo stores a pending pod with a nomination.
func (w *oracleWorld) nominateTo(pod *v1.Pod, node string) {
	w.record("nominate %s to %s", pod.Name, node)
	pod.Status.NominatedNodeName = node
	w.setNominated(append(withoutPod(w.nominated, pod.UID), pod))
	put(w, pod)
	w.awaitQueued(pod.UID, func(queued *v1.Pod) bool { return queued != nil && queued.Status.NominatedNodeName == node })
}

// setNominated changes the nominated pods of the reference.
func (w *oracleWorld) setNominated(pods []*v1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nominated = pods
	w.Must(w.reference.Nominate(pods))
}

// renominate nominates a nominated pod to another node.
func (w *oracleWorld) renominate() {
	if len(w.nominated) > 0 {
		w.nominateTo(generate.Pick(w.Rand, w.nominated).DeepCopy(), w.RandomNode().Name)
	}
}

// withdraw deletes a nominated pod.
func (w *oracleWorld) withdraw() {
	if len(w.nominated) > 0 {
		w.withdrawPod(generate.Pick(w.Rand, w.nominated))
	}
}

// withdrawPod deletes a nominated pod. The next decision may be about a pod that needs its room.
func (w *oracleWorld) withdrawPod(pod *v1.Pod) {
	w.removePending(pod)
	w.freedNode = pod.Status.NominatedNodeName
	w.tally.withdrawn++
}

// removePending deletes a pod that is not bound. If an attempt to schedule the pod ends at this moment, upstream may put the
// pod into the queue after its deletion, and leave it there until the next attempt.
func (w *oracleWorld) removePending(pod *v1.Pod) {
	w.record("remove pending %s", pod.Name)
	w.API.Remove(pod)
	w.awaitQueued(pod.UID, func(queued *v1.Pod) bool {
		if queued != nil && w.isDeleted(pod) {
			w.Sched.SchedulingQueue.Delete(klog.FromContext(w.Ctx), queued)
		}
		return queued == nil
	})
	w.setNominated(withoutPod(w.nominated, pod.UID))
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pending, pod.UID)
	delete(w.attempts, pod.UID)
}

// isDeleted returns whether the leader knows that a pending pod was deleted.
func (w *oracleWorld) isDeleted(pod *v1.Pod) bool {
	_, err := w.replicas[0].informers.Core().V1().Pods().Lister().Pods(pod.Namespace).Get(pod.Name)
	return apierrors.IsNotFound(err)
}

// awaitQueued waits until the leader's queue has a pending pod as check requires it; check gets nil if the queue does not have the pod.
func (w *oracleWorld) awaitQueued(uid types.UID, check func(*v1.Pod) bool) {
	w.T.Helper()
	w.Eventually(fmt.Sprintf("the queue has the last version of pod %s", uid), func() error {
		pods, _ := w.Sched.SchedulingQueue.PendingPods()
		pods = append(pods, w.Sched.SchedulingQueue.InFlightPods()...)
		var queued *v1.Pod
		if i := slices.IndexFunc(pods, func(pod *v1.Pod) bool { return pod.UID == uid }); i >= 0 {
			queued = pods[i]
		}
		if !check(queued) {
			return fmt.Errorf("the queue has it as %+v", queued)
		}
		return nil
	})
}

// recordEvent records an event of the leader's informers.
func (w *oracleWorld) recordEvent(object any, deleted bool) {
	meta := object.(metav1.Object)
	version := meta.GetResourceVersion()
	if deleted {
		version = ""
	}
	w.eventsMu.Lock()
	defer w.eventsMu.Unlock()
	// The event of a bind comes from another replica than later events of the pod, and may arrive after them.
	if last, known := w.events[meta.GetUID()]; !known || deleted || last != "" && refresh.IsNewer(version, last) {
		w.events[meta.GetUID()] = version
	}
}

// eventPatience is how long an event is awaited that may have been lost with a connection. The leader then retries all
// unschedulable pods.
const eventPatience = 5 * time.Second

// awaitEvent waits until the leader has got the event of an object's version, or of its deletion if version is "".
func (w *oracleWorld) awaitEvent(uid types.UID, version string) {
	w.T.Helper()
	start := time.Now()
	w.Eventually(fmt.Sprintf("the leader has the event of version %q of %s", version, uid), func() error {
		w.eventsMu.Lock()
		defer w.eventsMu.Unlock()
		if got, ok := w.events[uid]; (!ok || got != version) && (time.Since(start) < eventPatience || !w.disturbed()) {
			return fmt.Errorf("the last version in an event is %q", got)
		}
		return nil
	})
}

// awaitCaughtUp waits until the owner of each node has its last version, and the pods on it.
func (w *oracleWorld) awaitCaughtUp() {
	w.T.Helper()
	w.Eventually("the owners have all nodes and pods", func() error {
		nodes := 0
		for _, r := range w.replicas {
			nodes += r.holder.Counts().Nodes
		}
		if nodes != len(w.Nodes) {
			return fmt.Errorf("they have %d nodes, want %d", nodes, len(w.Nodes))
		}
		for name := range w.Nodes {
			if err := w.checkNode(name, func(info *framework.NodeInfo) string { return describePods(info) }); err != nil {
				return err
			}
		}
		return nil
	})
}

// checkNode compares what describe returns for the owner's node with what it returns for the reference's node.
func (w *oracleWorld) checkNode(name string, describe func(*framework.NodeInfo) string) error {
	owner := w.replicas[0].member.NodeOwner(name)
	i := slices.IndexFunc(w.replicas, func(r *testReplica) bool { return r.options.Self.Name == owner })
	if i < 0 {
		return errors.New("the owner of " + name + " is not known")
	}
	for _, r := range w.replicas {
		if known := r.member.NodeOwner(name); known != owner {
			return fmt.Errorf("for %s, %s is the owner of %s, want %s", r.options.Self.Name, known, name, owner)
		}
	}
	got, err := w.replicas[i].holder.NodeInfo(name)
	if err != nil {
		return err
	}
	if got.Node() == nil {
		return fmt.Errorf("%s has pods of %s, but not the node", owner, name)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	want := framework.NewNodeInfo()
	want.SetNode(w.Nodes[name])
	for _, pod := range w.Pods {
		if pod.Spec.NodeName == name {
			want.AddPod(pod)
		}
	}
	if got, want := describe(got), describe(want); got != want {
		return fmt.Errorf("%s of %s is\n%s\nwant\n%s", name, owner, got, want)
	}
	return nil
}

// describePods describes a node, and what changes of the pods on it.
func describePods(info *framework.NodeInfo) string {
	pods := map[string]string{}
	for _, pod := range info.Pods {
		pods[string(pod.GetPod().UID)] = fmt.Sprintf("%s terminates: %t", pod.GetPod().Labels["app"], pod.GetPod().DeletionTimestamp != nil)
	}
	node := info.Node()
	return fmt.Sprintf("%v %v %t %v %v", node.Labels, node.Spec.Taints, node.Spec.Unschedulable, info.Allocatable, pods)
}

// describeUsage describes a node and everything that the pods on it use.
func describeUsage(info *framework.NodeInfo) string {
	claims := slices.Sorted(maps.Keys(info.PVCRefCounts))
	return fmt.Sprintf("%s requested %+v nonzero %+v ports %v claims %v", describePods(info), schedtest.WithoutZeroResources(info.Requested), schedtest.WithoutZeroResources(info.NonZeroRequested), info.UsedPorts, claims)
}
