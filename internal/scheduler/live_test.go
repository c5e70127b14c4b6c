package scheduler

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	upstream "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	upcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/reference"
)

// patience is how long a test waits for what must come.
const patience = 30 * time.Second

// live is a scheduler with informers that run, at an API server in memory.
type live struct {
	t         *testing.T
	ctx       context.Context
	api       *api
	sched     *upstream.Scheduler
	ranker    *ranker
	informers informers.SharedInformerFactory
	// stop waits until nothing is scheduled any more.
	stop func()
}

func newLive(t *testing.T, api *api, profile *config.KubeSchedulerProfile, options ...upstream.Option) *live {
	t.Helper()
	client := api.client()
	l := makeLive(t, api, client, upstream.NewInformerFactory(client, 0, nil), profile, options...)
	l.informers.Start(l.ctx.Done())
	l.informers.WaitForCacheSync(l.ctx.Done())
	l.must(l.sched.WaitForHandlersSync(l.ctx))
	return l
}

// newScripted is one whose informers do not watch.
func newScripted(t *testing.T, api *api) *live {
	t.Helper()
	client := api.client()
	return makeLive(t, api, client, api.script(client), nil)
}

func makeLive(
	t *testing.T, api *api, client kubernetes.Interface, factory informers.SharedInformerFactory, profile *config.KubeSchedulerProfile, options ...upstream.Option,
) *live {
	t.Helper()
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.Logger{}))
	t.Cleanup(cancel)
	if profile == nil {
		profile = defaultProfile(t)
	}
	l := &live{t: t, ctx: ctx, api: api, informers: factory}
	recorders := func(string) events.EventRecorderLogger { return &events.FakeRecorder{} }
	var err error
	l.sched, err = upstream.New(ctx, client, l.informers, nil, recorders,
		append([]upstream.Option{upstream.WithProfiles(*profile)}, options...)...)
	l.must(err)
	l.ranker, err = attach(l.sched, []config.KubeSchedulerProfile{*profile})
	l.must(err)
	return l
}

func defaultProfile(t *testing.T) *config.KubeSchedulerProfile {
	t.Helper()
	cfg, err := latest.Default()
	if err != nil {
		t.Fatal(err)
	}
	return &cfg.Profiles[0]
}

func (l *live) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// run schedules until the test ends, or stop is called.
func (l *live) run() {
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(l.ctx)
	go func() {
		defer close(done)
		wait.UntilWithContext(ctx, l.sched.ScheduleOne, 0)
	}()
	l.sched.SchedulingQueue.Run(klog.Logger{})
	stop := sync.OnceFunc(func() {
		cancel()
		l.sched.SchedulingQueue.Close()
		<-done
	})
	l.stop = stop
	l.t.Cleanup(stop)
}

// eventually waits until there is no error.
func (l *live) eventually(what string, try func() error) {
	l.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			l.t.Fatalf("%s, not within %v: %v", what, patience, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// refresh carries out what the scheduler has heard of, as a cycle does. It is for
// tests that do not run the scheduler.
func (l *live) refresh() {
	l.t.Helper()
	l.must(l.sched.Cache.UpdateSnapshot(klog.Logger{}, l.snapshot()))
}

func (l *live) snapshot() *upcache.Snapshot {
	return l.sched.Profiles[v1.DefaultSchedulerName].SnapshotSharedLister().(*upcache.Snapshot)
}

// differs says how what the scheduler knows differs from what a cache of upstream's
// knows that is told what the server has. Both are read; so nothing may be scheduled
// meanwhile.
func (l *live) differs() error {
	l.refresh()
	nodes, pods := l.api.nodes(), l.api.pods()
	reference, bound, err := l.reference(nodes, pods)
	if err != nil {
		return err
	}
	if err := l.podsDiffer(pods); err != nil {
		return err
	}
	if known := l.ranker.cluster.pods; known != bound {
		return fmt.Errorf("%d pods are on nodes, and should be %d", known, bound)
	}
	if count := l.sched.Cache.NodeCount(); count != len(nodes) {
		return fmt.Errorf("%d nodes are known, and should be %d", count, len(nodes))
	}
	if count := l.ranker.cluster.index.Len(); count != len(nodes) {
		return fmt.Errorf("%d nodes are in the index, and should be %d", count, len(nodes))
	}
	if err := differentSnapshots(l.snapshot(), reference); err != nil {
		return err
	}
	return l.queueDiffers(pods)
}

// podsDiffer says how the pods that are known to be on nodes differ from those that
// are.
func (l *live) podsDiffer(pods []*v1.Pod) error {
	known := map[types.UID]podState{}
	cache := l.sched.Cache.(*Cache)
	cache.mu.Lock()
	maps.Copy(known, cache.pods)
	cache.mu.Unlock()
	for _, pod := range pods {
		state := known[pod.UID]
		if pod.Spec.NodeName == "" {
			continue
		}
		if state.pod == nil || state.assumed || state.pod.ResourceVersion != pod.ResourceVersion || state.pod.Spec.NodeName != pod.Spec.NodeName {
			return fmt.Errorf("pod %s is on %s in version %s, and known as %+v", pod.UID, pod.Spec.NodeName, pod.ResourceVersion, state)
		}
		delete(known, pod.UID)
	}
	for uid, state := range known {
		return fmt.Errorf("pod %s is gone, and known on %s, assumed %v", uid, state.pod.Spec.NodeName, state.assumed)
	}
	return nil
}

// reference is the snapshot that upstream's cache makes of nodes and pods.
func (l *live) reference(nodes []*v1.Node, pods []*v1.Pod) (*upcache.Snapshot, int, error) {
	cache, snapshot, bound := upcache.New(l.ctx, nil, false, false), upcache.NewEmptySnapshot(), 0
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

// queueDiffers says how the queue differs from the pods that wait. Pods that are gone
// may be in it, if their last event was one of a pod with a node and the one that
// told of the node did not come: upstream looks for those where pods with nodes are.
// Their next try finds them gone.
func (l *live) queueDiffers(pods []*v1.Pod) error {
	waiting, queued, there := sets.New[types.UID](), sets.New[types.UID](), sets.New[types.UID]()
	for _, pod := range pods {
		there.Insert(pod.UID)
		if pod.Spec.NodeName == "" {
			waiting.Insert(pod.UID)
		}
	}
	pending, _ := l.sched.SchedulingQueue.PendingPods()
	for _, pod := range pending {
		if there.Has(pod.UID) {
			queued.Insert(pod.UID)
		}
	}
	if !waiting.Equal(queued) {
		return fmt.Errorf("not in the queue are %v, in it but on nodes %v", waiting.Difference(queued), queued.Difference(waiting))
	}
	return nil
}

func differentSnapshots(have, want *upcache.Snapshot) error {
	if have, want := have.NumNodesInPlacement(), want.NumNodesInPlacement(); have != want {
		return fmt.Errorf("the snapshot has %d nodes, and should have %d", have, want)
	}
	wanted, err := want.NodeInfos().List()
	if err != nil {
		return err
	}
	for _, info := range wanted {
		known, err := have.Get(info.Node().Name)
		if err != nil {
			return err
		}
		if have, want := describe(known.(*framework.NodeInfo)), describe(info.(*framework.NodeInfo)); have != want {
			return fmt.Errorf("node %s is\n%s\nand should be\n%s", info.Node().Name, have, want)
		}
		for claim := range info.(*framework.NodeInfo).PVCRefCounts {
			if !have.StorageInfos().IsPVCUsedByPods(claim) {
				return fmt.Errorf("claim %s is used, and not known to be", claim)
			}
		}
	}
	for _, lists := range [][2]func() (names []string, err error){
		{namesOf(have.NodeInfos().List), namesOf(want.NodeInfos().List)},
		{namesOf(have.NodeInfos().HavePodsWithAffinityList), namesOf(want.NodeInfos().HavePodsWithAffinityList)},
		{namesOf(have.NodeInfos().HavePodsWithRequiredAntiAffinityList), namesOf(want.NodeInfos().HavePodsWithRequiredAntiAffinityList)},
	} {
		have, err := lists[0]()
		if err != nil {
			return err
		}
		want, err := lists[1]()
		if err != nil || !slices.Equal(have, want) {
			return fmt.Errorf("a list has %v, and should have %v (%v)", have, want, err)
		}
	}
	return nil
}

// describe writes down all that plugins see of a node, but in which order pods came.
func describe(info *framework.NodeInfo) string {
	var pods, affine, averse []string
	for _, pod := range info.Pods {
		pods = append(pods, fmt.Sprintf("%s@%s", pod.GetPod().UID, pod.GetPod().ResourceVersion))
	}
	for _, pod := range info.PodsWithAffinity {
		affine = append(affine, string(pod.GetPod().UID))
	}
	for _, pod := range info.PodsWithRequiredAntiAffinity {
		averse = append(averse, string(pod.GetPod().UID))
	}
	for _, list := range [][]string{pods, affine, averse} {
		slices.Sort(list)
	}
	images := map[string]string{}
	for name, image := range info.ImageStates {
		images[name] = fmt.Sprintf("%d on %d", image.Size, image.NumNodes)
	}
	return fmt.Sprintf("version %s requested %+v counted %+v allocatable %+v ports %v images %v claims %v features %v pods %v affinity %v anti-affinity %v",
		info.Node().ResourceVersion, scalarless(info.Requested), scalarless(info.NonZeroRequested), *info.Allocatable, info.UsedPorts, images,
		info.PVCRefCounts, info.DeclaredFeatures, pods, affine, averse)
}

// scalarless drops resources of which nothing is requested any more.
func scalarless(r *framework.Resource) framework.Resource {
	c := *r
	c.ScalarResources = maps.Clone(r.ScalarResources)
	maps.DeleteFunc(c.ScalarResources, func(_ v1.ResourceName, amount int64) bool { return amount == 0 })
	if len(c.ScalarResources) == 0 {
		c.ScalarResources = nil
	}
	return c
}

// randomSeed is that of the flag, or a new one, which it prints.
func randomSeed(t *testing.T) *rand.Rand {
	first := *seed
	if first == 0 {
		first = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d: -oracle.seed repeats it", first)
	return rand.New(rand.NewPCG(first, 0))
}

// newReference is one that has nothing but nodes and pods.
func newReference(t *testing.T, ctx context.Context) *reference.Reference {
	t.Helper()
	made, err := reference.New(ctx, *defaultProfile(t), informers.NewSharedInformerFactory(fake.NewClientset(), 0))
	if err != nil {
		t.Fatal(err)
	}
	return made
}
