package schedtest

import (
	"context"
	"flag"
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
	"k8s.io/client-go/tools/events"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	schedcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/attach"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
)

// Patience is the time after which a test fails if an expected event has not happened.
const Patience = 30 * time.Second

// Live is a scheduler whose informers watch an API server in memory.
type Live struct {
	T         *testing.T
	Ctx       context.Context
	API       *API
	Sched     *kubescheduler.Scheduler
	Parts     *attach.Parts
	Ranker    *rank.Ranker
	Informers informers.SharedInformerFactory
	// Stop stops the scheduler and waits until no cycle runs.
	Stop func()
}

// newLive returns a scheduler whose informers use watches.
func newLive(t *testing.T, api *API, profile *config.KubeSchedulerProfile, options ...kubescheduler.Option) *Live {
	t.Helper()
	client := api.Client()
	l := makeLive(t, api, client, kubescheduler.NewInformerFactory(client, 0, nil), profile, options...)
	l.Informers.Start(l.Ctx.Done())
	l.Informers.WaitForCacheSync(l.Ctx.Done())
	l.Must(l.Sched.WaitForHandlersSync(l.Ctx))
	return l
}

// NewScripted returns a scheduler whose informers receive events without a watch.
func NewScripted(t *testing.T, api *API) *Live {
	t.Helper()
	client := api.Client()
	return makeLive(t, api, client, api.script(client), nil)
}

func makeLive(
	t *testing.T, api *API, client kubernetes.Interface, factory informers.SharedInformerFactory, profile *config.KubeSchedulerProfile, options ...kubescheduler.Option,
) *Live {
	t.Helper()
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.Logger{}))
	t.Cleanup(cancel)
	if profile == nil {
		profile = DefaultProfile(t)
	}
	l := &Live{T: t, Ctx: ctx, API: api, Informers: factory}
	recorders := func(string) events.EventRecorderLogger { return &events.FakeRecorder{} }
	var err error
	l.Sched, err = kubescheduler.New(ctx, client, l.Informers, nil, recorders,
		append([]kubescheduler.Option{kubescheduler.WithProfiles(*profile)}, options...)...)
	l.Must(err)
	l.Parts, err = attach.New(l.Sched, []config.KubeSchedulerProfile{*profile})
	l.Must(err)
	l.Ranker = l.Parts.Ranker
	return l
}

// DefaultProfile returns kube-scheduler's default profile.
func DefaultProfile(t *testing.T) *config.KubeSchedulerProfile {
	t.Helper()
	cfg, err := latest.Default()
	if err != nil {
		t.Fatal(err)
	}
	return &cfg.Profiles[0]
}

// Must fails the test if there is an error.
func (l *Live) Must(err error) {
	l.T.Helper()
	if err != nil {
		l.T.Fatal(err)
	}
}

// Run schedules until the test ends or Stop is called.
func (l *Live) Run() {
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(l.Ctx)
	go func() {
		defer close(done)
		wait.UntilWithContext(ctx, l.Sched.ScheduleOne, 0)
	}()
	l.Sched.SchedulingQueue.Run(klog.Logger{})
	stop := sync.OnceFunc(func() {
		cancel()
		l.Sched.SchedulingQueue.Close()
		<-done
	})
	l.Stop = stop
	l.T.Cleanup(stop)
}

// Eventually waits until try returns no error.
func (l *Live) Eventually(what string, try func() error) {
	l.T.Helper()
	deadline := time.Now().Add(Patience)
	for {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			l.T.Fatalf("%s, not within %v: %v", what, Patience, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Refresh applies all pending changes, as the start of a scheduling cycle does. It is for tests that do not run
// the scheduler.
func (l *Live) Refresh() {
	l.T.Helper()
	l.Must(l.Sched.Cache.UpdateSnapshot(klog.Logger{}, l.Snapshot()))
}

// Snapshot returns the snapshot that plugins read.
func (l *Live) Snapshot() *schedcache.Snapshot {
	return l.Sched.Profiles[v1.DefaultSchedulerName].SnapshotSharedLister().(*schedcache.Snapshot)
}

// Differs returns an error if the scheduler's cache or queue differs from the objects of the API server. It fills
// upstream's cache with these objects and compares the snapshots. No pod may be scheduled meanwhile.
func (l *Live) Differs() error {
	l.Refresh()
	nodes, pods := l.API.Nodes(), l.API.Pods()
	reference, bound, err := l.reference(nodes, pods)
	if err != nil {
		return err
	}
	if err := l.podsDiffer(pods); err != nil {
		return err
	}
	if known := l.Ranker.Cluster.Pods; known != bound {
		return fmt.Errorf("the cache has %d pods on nodes; want %d", known, bound)
	}
	if count := l.Sched.Cache.NodeCount(); count != len(nodes) {
		return fmt.Errorf("the cache has %d nodes; want %d", count, len(nodes))
	}
	if count := l.Ranker.Cluster.Index.Len(); count != len(nodes) {
		return fmt.Errorf("the index has %d nodes; want %d", count, len(nodes))
	}
	if err := differentSnapshots(l.Snapshot(), reference); err != nil {
		return err
	}
	return l.queueDiffers(pods)
}

// podsDiffer compares the pods in the cache with the bound pods of the API server.
func (l *Live) podsDiffer(pods []*v1.Pod) error {
	known := l.Sched.Cache.(*cache.Cache).States()
	for _, pod := range pods {
		state := known[pod.UID]
		if pod.Spec.NodeName == "" {
			continue
		}
		if state.Pod == nil || state.Assumed || state.Pod.ResourceVersion != pod.ResourceVersion || state.Pod.Spec.NodeName != pod.Spec.NodeName {
			return fmt.Errorf("pod %s is on %s in version %s; the cache has %+v", pod.UID, pod.Spec.NodeName, pod.ResourceVersion, state)
		}
		delete(known, pod.UID)
	}
	for uid, state := range known {
		return fmt.Errorf("pod %s does not exist; the cache has it on %s, assumed %v", uid, state.Pod.Spec.NodeName, state.Assumed)
	}
	return nil
}

// reference returns the snapshot that upstream's cache makes of nodes and pods, and the number of
// bound pods.
func (l *Live) reference(nodes []*v1.Node, pods []*v1.Pod) (*schedcache.Snapshot, int, error) {
	cache, snapshot, bound := schedcache.New(l.Ctx, nil, false, false), schedcache.NewEmptySnapshot(), 0
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

// queueDiffers compares the queue with the pods that have no node. The queue may contain deleted pods if the event
// of their bind was lost: upstream removes these pods only from the cache. Their next scheduling attempt finds
// that they are deleted.
func (l *Live) queueDiffers(pods []*v1.Pod) error {
	waiting, queued, there := sets.New[types.UID](), sets.New[types.UID](), sets.New[types.UID]()
	for _, pod := range pods {
		there.Insert(pod.UID)
		if pod.Spec.NodeName == "" {
			waiting.Insert(pod.UID)
		}
	}
	pending, _ := l.Sched.SchedulingQueue.PendingPods()
	for _, pod := range pending {
		if there.Has(pod.UID) {
			queued.Insert(pod.UID)
		}
	}
	if !waiting.Equal(queued) {
		return fmt.Errorf("these pending pods are not in the queue: %v; these pods on nodes are in the queue: %v", waiting.Difference(queued), queued.Difference(waiting))
	}
	return nil
}

func differentSnapshots(have, want *schedcache.Snapshot) error {
	if have, want := have.NumNodesInPlacement(), want.NumNodesInPlacement(); have != want {
		return fmt.Errorf("the snapshot has %d nodes; want %d", have, want)
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
			return fmt.Errorf("node %s is\n%s\nwant\n%s", info.Node().Name, have, want)
		}
		for claim := range info.(*framework.NodeInfo).PVCRefCounts {
			if !have.StorageInfos().IsPVCUsedByPods(claim) {
				return fmt.Errorf("claim %s is in use, but not in the snapshot's claims", claim)
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
			return fmt.Errorf("a list of the snapshot has %v; want %v (error: %v)", have, want, err)
		}
	}
	return nil
}

// describe returns a text with everything that plugins read of a node. It does not depend on the order of the pods.
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

// scalarless drops extended resources whose requested amount is zero.
func scalarless(r *framework.Resource) framework.Resource {
	c := *r
	c.ScalarResources = maps.Clone(r.ScalarResources)
	maps.DeleteFunc(c.ScalarResources, func(_ v1.ResourceName, amount int64) bool { return amount == 0 })
	if len(c.ScalarResources) == 0 {
		c.ScalarResources = nil
	}
	return c
}

var seed = flag.Uint64("oracle.seed", 0, "seed of the first cluster; 0 is a random one")

// FirstSeed returns the seed in the flag, or a new seed if the flag is not set.
func FirstSeed() uint64 {
	if *seed != 0 {
		return *seed
	}
	return uint64(time.Now().UnixNano())
}

// RandomSeed returns a random generator with the seed of [FirstSeed], which it prints.
func RandomSeed(t *testing.T) *rand.Rand {
	first := FirstSeed()
	t.Logf("seed %d: -oracle.seed repeats it", first)
	return rand.New(rand.NewPCG(first, 0))
}

// MetricWith returns a function that reads the counter of a metric whose first label has the given value.
func MetricWith(name, label string) func() (float64, error) {
	return func() (float64, error) {
		families, err := legacyregistry.DefaultGatherer.Gather()
		if err != nil {
			return 0, err
		}
		for _, family := range families {
			if family.GetName() != name {
				continue
			}
			for _, metric := range family.GetMetric() {
				if metric.GetLabel()[0].GetValue() == label {
					return metric.GetCounter().GetValue(), nil
				}
			}
		}
		return 0, nil
	}
}
