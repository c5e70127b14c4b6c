package rank_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	st "k8s.io/kubernetes/pkg/scheduler/testing"
	"k8s.io/utils/ptr"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// TestNominationOfDeletedPodIsForgotten checks that a node is forgotten when its nominated pod is
// deleted. Otherwise pods would fall back to upstream's scan long after a preemption.
func TestNominationOfDeletedPodIsForgotten(t *testing.T) {
	f := schedtest.NewScripted(t, schedtest.NewAPI())
	pod := st.MakePod().Name("pod").UID("pod").Namespace("default").SchedulerName("default-scheduler").NominatedNodeName("n").Obj()
	f.Must(f.Informers.Core().V1().Pods().Informer().GetIndexer().Add(pod))
	queue := f.Ranker.Nominations
	queue.Add(f.Ctx, pod)
	if nominees := queue.ByNode(); len(nominees["n"]) != 1 || nominees["n"][0].UID != "pod" {
		t.Fatalf("ByNode() = %v, want the pod on node n", nominees)
	}
	queue.Delete(klog.Background(), pod)
	if nominees := queue.ByNode(); len(nominees) != 0 || queue.Tracked() != 0 {
		t.Errorf("after Delete() ByNode() = %v and %d pods are tracked, want none", nominees, queue.Tracked())
	}
}

// TestNominationsEqualThoseOfUpstreamsQueue compares the remembered nominations with upstream's
// queue after random changes.
func TestNominationsEqualThoseOfUpstreamsQueue(t *testing.T) {
	f := schedtest.NewScripted(t, schedtest.NewAPI())
	logger, queue := klog.Background(), f.Ranker.Nominations
	random := rand.New(rand.NewPCG(7, 11))
	indexer := f.Informers.Core().V1().Pods().Informer().GetIndexer()
	nodes := []string{"", "a", "b", "c"}
	pods := map[string]*v1.Pod{}
	for step := range 5000 {
		name := fmt.Sprint("pod-", random.IntN(12))
		node := nodes[random.IntN(len(nodes))]
		pod := pods[name]
		switch action := random.IntN(7); {
		case pod == nil:
			pod = st.MakePod().Name(name).UID(fmt.Sprint(name, step)).Namespace("default").SchedulerName("default-scheduler").
				NominatedNodeName(node).Priority(int32(random.IntN(3))).Req(map[v1.ResourceName]string{v1.ResourceCPU: fmt.Sprint(1 + random.IntN(3))}).Obj()
			pods[name] = pod
			f.Must(indexer.Add(pod))
			queue.Add(f.Ctx, pod)
		case action == 0:
			delete(pods, name)
			f.Must(indexer.Delete(pod))
			queue.Delete(logger, pod)
		case action == 1:
			changed := pod.DeepCopy()
			changed.Status.NominatedNodeName = node
			changed.Spec.Priority = ptr.To(int32(random.IntN(3)))
			pods[name] = changed
			f.Must(indexer.Update(changed))
			queue.Update(f.Ctx, pod, changed)
		case action == 2:
			queue.AddNominatedPod(logger, mustInfo(t, pod), &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride, NominatedNodeName: node})
		case action == 3:
			queue.DeleteNominatedPodIfExists(pod)
		case action == 4:
			queue.UpdateNominatedPod(logger, pod, mustInfo(t, pod))
		default:
			attemptOne(f.Ctx, t, queue, func() { compareNominees(t, queue, nodes) })
		}
		if random.IntN(3) > 0 {
			compareNominees(t, queue, nodes)
		}
	}
}

// TestNominationWhileThePodIsUpdated nominates a pod that was returned to the queue, as kube-scheduler does after a
// failed attempt, while the pod is updated. With -race, it fails if the pod is read without the queue's lock.
func TestNominationWhileThePodIsUpdated(t *testing.T) {
	f := schedtest.NewScripted(t, schedtest.NewAPI())
	logger, queue := klog.Background(), f.Ranker.Nominations
	pod := st.MakePod().Name("pod").UID("pod").Namespace("default").SchedulerName("default-scheduler").Obj()
	f.Must(f.Informers.Core().V1().Pods().Informer().GetIndexer().Add(pod))
	queue.Add(f.Ctx, pod)
	next, err := queue.Pop(logger)
	f.Must(err)
	queued := next.(*framework.QueuedPodInfo)
	queued.UnschedulablePlugins.Insert("Plugin")
	f.Must(queue.AddUnschedulablePodIfNotPresent(logger, queued, queue.SchedulingCycle()))
	var updating sync.WaitGroup
	updating.Go(func() {
		for range 1000 {
			queue.Update(f.Ctx, pod, pod.DeepCopy())
		}
	})
	for range 1000 {
		queue.AddNominatedPod(logger, queued.PodInfo, &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride, NominatedNodeName: "n"})
	}
	updating.Wait()
	if nominees := queue.ByNode(); len(nominees["n"]) != 1 {
		t.Errorf("ByNode() = %v, want the pod on node n", nominees)
	}
}

// attemptOne pops a pod from the queue, if there is one, and returns it as unschedulable. It calls
// during while the pod is not in the queue.
func attemptOne(ctx context.Context, t *testing.T, queue *rank.Nominations, during func()) {
	pending, _ := queue.PendingPods()
	if len(pending) == 0 {
		return
	}
	queue.MoveAllToActiveOrBackoffQueue(klog.Background(), framework.EventForceActivate, nil, nil, nil)
	byName := map[string]*v1.Pod{}
	for _, pod := range pending {
		byName[pod.Name] = pod
	}
	queue.Activate(klog.Background(), byName)
	next, err := queue.Pop(klog.Background())
	if err != nil {
		t.Fatal(err)
	}
	during()
	pod := next.(*framework.QueuedPodInfo)
	if err := queue.AddUnschedulablePodIfNotPresent(klog.Background(), pod, queue.SchedulingCycle()); err != nil {
		t.Fatal(err)
	}
	queue.Done(pod.Pod.UID)
}

// compareNominees compares the remembered nominations of nodes with upstream's.
func compareNominees(t *testing.T, queue *rank.Nominations, nodes []string) {
	t.Helper()
	got := queue.ByNode()
	for _, node := range nodes {
		var want []rank.Nominee
		for _, pod := range queue.NominatedPodsForNode(node) {
			want = append(want, rank.NewNominee(pod))
		}
		if !slices.Equal(got[node], want) {
			t.Fatalf("ByNode()[%q] = %v, want %v", node, got[node], want)
		}
	}
}

func mustInfo(t *testing.T, pod *v1.Pod) *framework.PodInfo {
	t.Helper()
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		t.Fatal(err)
	}
	return info
}
