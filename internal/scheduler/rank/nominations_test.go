package rank_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
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

// TestNominationsAreForgotten checks that nodes are forgotten when their nominated pods are
// deleted. Otherwise pods would fall back to upstream's scan long after a preemption.
func TestNominationsAreForgotten(t *testing.T) {
	l := schedtest.NewScripted(t, schedtest.NewAPI())
	pod := st.MakePod().Name("waits").UID("waits").Namespace("default").SchedulerName("default-scheduler").NominatedNodeName("n").Obj()
	l.Must(l.Informers.Core().V1().Pods().Informer().GetIndexer().Add(pod))
	queue := l.Ranker.Nominations
	queue.Add(l.Ctx, pod)
	if nominees := queue.ByNode(); len(nominees["n"]) != 1 || nominees["n"][0].UID != "waits" {
		t.Fatalf("the nominated pods are %v", nominees)
	}
	queue.Delete(klog.Background(), pod)
	if nominees := queue.ByNode(); len(nominees) != 0 || queue.Tracked() != 0 {
		t.Errorf("nobody is nominated, and yet there are %v", nominees)
	}
}

// TestNominationsAreThoseOfTheQueue compares the remembered nominations with upstream's queue after
// random changes.
func TestNominationsAreThoseOfTheQueue(t *testing.T) {
	l := schedtest.NewScripted(t, schedtest.NewAPI())
	logger, queue := klog.Background(), l.Ranker.Nominations
	random := rand.New(rand.NewPCG(7, 11))
	known := l.Informers.Core().V1().Pods().Informer().GetIndexer()
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
			l.Must(known.Add(pod))
			queue.Add(l.Ctx, pod)
		case action == 0:
			delete(pods, name)
			l.Must(known.Delete(pod))
			queue.Delete(logger, pod)
		case action == 1:
			changed := pod.DeepCopy()
			changed.Status.NominatedNodeName = node
			changed.Spec.Priority = ptr.To(int32(random.IntN(3)))
			pods[name] = changed
			l.Must(known.Update(changed))
			queue.Update(l.Ctx, pod, changed)
		case action == 2:
			queue.AddNominatedPod(logger, mustInfo(t, pod), &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride, NominatedNodeName: node})
		case action == 3:
			queue.DeleteNominatedPodIfExists(pod)
		case action == 4:
			queue.UpdateNominatedPod(logger, pod, mustInfo(t, pod))
		default:
			attemptOne(l.Ctx, t, queue, func() { compareNominees(t, queue, nodes) })
		}
		if random.IntN(3) > 0 {
			compareNominees(t, queue, nodes)
		}
	}
}

// attemptOne pops a pod from the queue, if there is one, and returns it as unschedulable.
func attemptOne(ctx context.Context, t *testing.T, queue *rank.Nominations, meanwhile func()) {
	active, _ := queue.PendingPods()
	if len(active) == 0 {
		return
	}
	queue.MoveAllToActiveOrBackoffQueue(klog.Background(), framework.EventForceActivate, nil, nil, nil)
	byName := map[string]*v1.Pod{}
	for _, pod := range active {
		byName[pod.Name] = pod
	}
	queue.Activate(klog.Background(), byName)
	next, err := queue.Pop(klog.Background())
	if err != nil {
		t.Fatal(err)
	}
	meanwhile()
	pod := next.(*framework.QueuedPodInfo)
	if err := queue.AddUnschedulablePodIfNotPresent(klog.Background(), pod, queue.SchedulingCycle()); err != nil {
		t.Fatal(err)
	}
	queue.Done(pod.Pod.UID)
}

func compareNominees(t *testing.T, queue *rank.Nominations, nodes []string) {
	t.Helper()
	kept := queue.ByNode()
	for _, node := range nodes {
		var want []rank.Nominee
		for _, pod := range queue.NominatedPodsForNode(node) {
			want = append(want, rank.NewNominee(pod))
		}
		if !slices.Equal(kept[node], want) {
			t.Fatalf("nominated to %q are %v, and not %v", node, want, kept[node])
		}
	}
}

func mustInfo(t *testing.T, pod *v1.Pod) *framework.PodInfo {
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		t.Fatal(err)
	}
	return info
}
