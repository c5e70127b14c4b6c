package schedtest

import (
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	schedcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
)

// CheckState returns an error if the scheduler's cache or queue does not match the API server. The
// reference for the cache is upstream's cache, filled with the nodes and pods of the API server. No
// scheduling cycle may run meanwhile.
func (f *Fixture) CheckState() error {
	f.Refresh()
	nodes, pods := f.API.Nodes(), f.API.Pods()
	reference, bound, err := f.reference(nodes, pods)
	if err != nil {
		return err
	}
	if err := f.checkPods(pods); err != nil {
		return err
	}
	if got := f.Ranker.Cluster.Pods; got != bound {
		return fmt.Errorf("Ranker.Cluster.Pods = %d, want %d", got, bound)
	}
	if got := f.Sched.Cache.NodeCount(); got != len(nodes) {
		return fmt.Errorf("Cache.NodeCount() = %d, want %d", got, len(nodes))
	}
	if got := f.Ranker.Cluster.Index.Len(); got != len(nodes) {
		return fmt.Errorf("Index.Len() = %d, want %d", got, len(nodes))
	}
	if err := compareSnapshots(f.Snapshot(), reference); err != nil {
		return err
	}
	return f.checkQueue(pods)
}

// checkPods compares the pods in the cache with the bound pods of the API server.
func (f *Fixture) checkPods(pods []*v1.Pod) error {
	cached := f.Sched.Cache.(*cache.Cache).States()
	for _, pod := range pods {
		state := cached[pod.UID]
		if pod.Spec.NodeName == "" {
			continue
		}
		if state.Pod == nil || state.Assumed || state.Pod.ResourceVersion != pod.ResourceVersion || state.Pod.Spec.NodeName != pod.Spec.NodeName {
			return fmt.Errorf("the cache has pod %s as %+v, want version %s, confirmed on node %s", pod.UID, state, pod.ResourceVersion, pod.Spec.NodeName)
		}
		delete(cached, pod.UID)
	}
	for uid, state := range cached {
		return fmt.Errorf("the cache has pod %s on node %s (assumed: %v), but it is not bound or does not exist", uid, state.Pod.Spec.NodeName, state.Assumed)
	}
	return nil
}

// reference returns the snapshot that upstream's cache makes of nodes and pods, and the number of
// bound pods.
func (f *Fixture) reference(nodes []*v1.Node, pods []*v1.Pod) (*schedcache.Snapshot, int, error) {
	cache, snapshot, bound := schedcache.New(f.Ctx, nil, false, false), schedcache.NewEmptySnapshot(), 0
	for _, node := range nodes {
		cache.AddNode(klog.Logger{}, node)
	}
	for _, pod := range pods {
		if pod.Spec.NodeName == "" {
			continue
		}
		bound++
		if err := cache.AddPod(klog.Logger{}, pod); err != nil {
			return nil, 0, err
		}
	}
	return snapshot, bound, cache.UpdateSnapshot(klog.Logger{}, snapshot)
}

// checkQueue compares the scheduling queue with the pending pods of the API server. Deleted pods in
// the queue are ignored: if the event of their bind was lost, upstream removes them only from the
// cache, and their next scheduling attempt finds that they are deleted.
func (f *Fixture) checkQueue(pods []*v1.Pod) error {
	pending, queued, existing := sets.New[types.UID](), sets.New[types.UID](), sets.New[types.UID]()
	for _, pod := range pods {
		existing.Insert(pod.UID)
		if pod.Spec.NodeName == "" {
			pending.Insert(pod.UID)
		}
	}
	inQueue, _ := f.Sched.SchedulingQueue.PendingPods()
	for _, pod := range inQueue {
		if existing.Has(pod.UID) {
			queued.Insert(pod.UID)
		}
	}
	if !pending.Equal(queued) {
		return fmt.Errorf("the queue lacks the pending pods %v and has the bound pods %v", pending.Difference(queued), queued.Difference(pending))
	}
	return nil
}

func compareSnapshots(got, want *schedcache.Snapshot) error {
	if got, want := got.NumNodesInPlacement(), want.NumNodesInPlacement(); got != want {
		return fmt.Errorf("Snapshot.NumNodesInPlacement() = %d, want %d", got, want)
	}
	wantNodes, err := want.NodeInfos().List()
	if err != nil {
		return err
	}
	for _, wantNode := range wantNodes {
		name := wantNode.Node().Name
		gotNode, err := got.Get(name)
		if err != nil {
			return err
		}
		if got, want := describe(gotNode.(*framework.NodeInfo)), describe(wantNode.(*framework.NodeInfo)); got != want {
			return fmt.Errorf("node %s of the snapshot is\n%s\nwant\n%s", name, got, want)
		}
		for claim := range wantNode.(*framework.NodeInfo).PVCRefCounts {
			if !got.StorageInfos().IsPVCUsedByPods(claim) {
				return fmt.Errorf("Snapshot.IsPVCUsedByPods(%q) = false, want true", claim)
			}
		}
	}
	for _, list := range []struct {
		name      string
		got, want func() (names []string, err error)
	}{
		{"nodes", namesOf(got.NodeInfos().List), namesOf(want.NodeInfos().List)},
		{"nodes that have pods with affinity", namesOf(got.NodeInfos().HavePodsWithAffinityList), namesOf(want.NodeInfos().HavePodsWithAffinityList)},
		{
			"nodes that have pods with required anti-affinity",
			namesOf(got.NodeInfos().HavePodsWithRequiredAntiAffinityList), namesOf(want.NodeInfos().HavePodsWithRequiredAntiAffinityList),
		},
	} {
		got, err := list.got()
		if err != nil {
			return err
		}
		want, err := list.want()
		if err != nil || !slices.Equal(got, want) {
			return fmt.Errorf("the snapshot lists the %s %v, want %v (error: %v)", list.name, got, want, err)
		}
	}
	return nil
}

// namesOf returns a function that returns the sorted names of the nodes in a list.
func namesOf(list func() ([]fwk.NodeInfo, error)) func() ([]string, error) {
	return func() ([]string, error) {
		infos, err := list()
		names := make([]string, len(infos))
		for i, info := range infos {
			names[i] = info.Node().Name
		}
		slices.Sort(names)
		return names, err
	}
}

// describe lists everything that plugins read of a node, except the order of its pods.
func describe(info *framework.NodeInfo) string {
	var pods, withAffinity, withAntiAffinity []string
	for _, pod := range info.Pods {
		pods = append(pods, fmt.Sprintf("%s@%s", pod.GetPod().UID, pod.GetPod().ResourceVersion))
	}
	for _, pod := range info.PodsWithAffinity {
		withAffinity = append(withAffinity, string(pod.GetPod().UID))
	}
	for _, pod := range info.PodsWithRequiredAntiAffinity {
		withAntiAffinity = append(withAntiAffinity, string(pod.GetPod().UID))
	}
	for _, list := range [][]string{pods, withAffinity, withAntiAffinity} {
		slices.Sort(list)
	}
	images := map[string]string{}
	for name, image := range info.ImageStates {
		images[name] = fmt.Sprintf("%d on %d", image.Size, image.NumNodes)
	}
	return fmt.Sprintf("version %s requested %+v nonzero requested %+v allocatable %+v ports %v images %v claims %v features %v pods %v affinity %v anti-affinity %v",
		info.Node().ResourceVersion, WithoutZeroResources(info.Requested), WithoutZeroResources(info.NonZeroRequested), *info.Allocatable, info.UsedPorts, images,
		info.PVCRefCounts, info.DeclaredFeatures, pods, withAffinity, withAntiAffinity)
}

// WithoutZeroResources returns a copy without the extended resources whose amount is zero.
func WithoutZeroResources(r *framework.Resource) framework.Resource {
	c := *r
	c.ScalarResources = maps.Clone(r.ScalarResources)
	maps.DeleteFunc(c.ScalarResources, func(_ v1.ResourceName, amount int64) bool { return amount == 0 })
	if len(c.ScalarResources) == 0 {
		c.ScalarResources = nil
	}
	return c
}
