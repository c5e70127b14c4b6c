package attach_test

import (
	"context"
	"flag"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	schedcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/utils/ptr"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/attach"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/pushinformer"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/reference"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/leader"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest/generate"
)

// newReference returns a reference whose informers have no objects: it sees only nodes and pods.
func newReference(t *testing.T, ctx context.Context) *reference.Reference {
	t.Helper()
	r, err := reference.New(ctx, *schedtest.DefaultProfile(t), informers.NewSharedInformerFactory(fake.NewClientset(), 0))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var (
	clusterCount = flag.Int("oracle.clusters", 12, "number of random clusters, with 300 decisions each")
)

// TestOracle generates random clusters and pods. It compares each decision with the reference,
// which runs kube-scheduler's plugins on all nodes of a snapshot made for that decision.
func TestOracle(t *testing.T) {
	seed := schedtest.Seed()
	ranked, decisions := 0, 0
	fallbacks := map[string]int{}
	for i := range *clusterCount {
		w := newWorld(t, seed+uint64(i), 0)
		w.run(300)
		ranked, decisions = ranked+w.ranked, decisions+w.decisions
		for reason, count := range w.fallbacks {
			fallbacks[reason] += count
		}
		if t.Failed() {
			return
		}
	}
	t.Logf("seed %d: %d decisions, %d by the index; reasons of the others: %v", seed, decisions, ranked, fallbacks)
	if ranked < decisions/3 {
		t.Errorf("the index made %d of %d decisions, want at least a third", ranked, decisions)
	}
}

// world is a random cluster that changes step by step, and the schedulers under test.
type world struct {
	*generate.Cluster
	t      *testing.T
	seed   uint64
	ctx    context.Context
	sched  *kubescheduler.Scheduler
	ranker *rank.Ranker
	// informers are the factories of the scheduler, of the reference and of each shard. Each needs
	// its own, because some plugins do not share informers.
	informers []informers.SharedInformerFactory
	// shards own the nodes; sched then leads. Without shards, sched has the nodes.
	shards []*worldShard
	search *leader.Search
	// sentQuery is the leader's last query, and encodedQuery the message when it was sent.
	sentQuery    *wire.Query
	encodedQuery []byte
	// queries counts the leader's queries, and preemptions those that were compared.
	queries, preemptions int
	preemptor            *leader.Preemptor
	preemptionArgs       *config.DefaultPreemptionArgs
	reference            *reference.Reference
	// trimmer trims objects as informers do. Only the reference gets whole objects.
	trimmer *cache.Trimmer
	// deviceClass is the DeviceClass for GPUs; nil if there is none.
	deviceClass *resourcev1.DeviceClass
	nominated   []*v1.Pod
	// lastState is the cycle state of the last decision.
	lastState *framework.CycleState
	// decisions counts scheduling attempts, and ranked those by the index. fallbacks counts the
	// others by reason.
	decisions int
	ranked    int
	fallbacks map[string]int
	history   []string
	failures  int
}

// newWorld returns a world with some nodes and no pods. If there are shards, they own the nodes.
func newWorld(t *testing.T, seed uint64, shards int) *world {
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.Logger{}))
	t.Cleanup(cancel)
	cfg, err := latest.Default()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		Cluster: generate.NewCluster(seed), t: t, seed: seed, ctx: ctx, fallbacks: map[string]int{},
		trimmer: cache.NewTrimmer(), informers: make([]informers.SharedInformerFactory, 2+shards),
	}
	for i := range w.informers {
		w.informers[i] = informers.NewSharedInformerFactory(fake.NewClientset(), 0)
		pushinformer.Register(w.informers[i], &resourcev1.DeviceClass{}, &resourcev1.ResourceSlice{}, &resourcev1.ResourceClaim{})
	}
	w.sched, w.ranker = w.newScheduler(w.informers[0], cfg.Profiles)
	for i := range shards {
		sched, ranker := w.newScheduler(w.informers[2+i], cfg.Profiles)
		ranker.Replica = fmt.Sprint("shard-", i)
		w.shards = append(w.shards, &worldShard{sched, ranker})
	}
	if shards > 0 {
		w.search = leader.NewSearch(w.ranker, func(f func()) { f() }, shardOwners{w})
		w.sched.SchedulePod = w.search.SchedulePod
		w.shareDryRuns(cfg.Profiles[0])
	}
	w.reference, err = reference.New(ctx, cfg.Profiles[0], w.informers[1])
	w.must(err)
	w.populate()
	return w
}

func (w *world) newScheduler(factory informers.SharedInformerFactory, profiles []config.KubeSchedulerProfile) (*kubescheduler.Scheduler, *rank.Ranker) {
	recorders := func(string) events.EventRecorderLogger { return events.NewFakeRecorder(1000) }
	sched, err := kubescheduler.New(w.ctx, fake.NewClientset(), factory, nil, recorders, kubescheduler.WithProfiles(profiles...))
	w.must(err)
	parts, err := attach.New(sched, profiles)
	w.must(err)
	ranker := parts.Ranker
	// With few spare names, numbers are reassigned several times in a test.
	ranker.Cluster.SpareNames, ranker.Cluster.ReturnCycles = 100, 5
	// In some worlds, racks then count as labels that differ on each node.
	ranker.Cluster.FewValues = 2
	// With no cost, nodes with nominated pods are always evaluated, never left to the full scan.
	ranker.NominatedNodeCost = 0
	return sched, ranker
}

// shareDryRuns lets shards propose victims of preemption, from which the leader chooses.
func (w *world) shareDryRuns(cfg config.KubeSchedulerProfile) {
	w.must(leader.ReplacePreemption(w.ctx, w.sched.Profiles[cfg.SchedulerName], cfg, w.search))
	profile := w.search.Profiles[cfg.SchedulerName]
	for _, shard := range w.shards {
		dryRuns, err := rank.NewDryRuns(w.ctx, shard.sched.Profiles[cfg.SchedulerName], cfg)
		w.must(err)
		shard.ranker.Profiles[cfg.SchedulerName].DryRuns = dryRuns
	}
	for _, plugin := range cfg.PluginConfig {
		if args, ok := plugin.Args.(*config.DefaultPreemptionArgs); ok {
			w.preemptionArgs = args
		}
	}
	w.preemptor = leader.NewPreemptor(profile.DryRuns, w.search, profile)
}

// cacheOf returns the cache that has a node and its pods.
func (w *world) cacheOf(node string) schedcache.Cache {
	if len(w.shards) == 0 {
		return w.sched.Cache
	}
	return w.shards[crc32.ChecksumIEEE([]byte(node))%uint32(len(w.shards))].sched.Cache
}

// populate creates namespaces, volumes, budgets, ReplicaSets, a Service and the first nodes.
func (w *world) populate() {
	for _, name := range generate.Namespaces {
		w.putNamespace(name, name != "default")
	}
	for _, factory := range w.informers {
		for _, object := range generate.Objects() {
			w.must(indexerOf(factory, object).Add(object))
		}
	}
	w.addDeviceClasses()
	for range 3 + w.Rand.IntN(25) {
		w.addNode()
	}
}

// indexerOf returns the indexer of the informer for an object of [generate.Objects].
func indexerOf(factory informers.SharedInformerFactory, object runtime.Object) toolscache.Indexer {
	switch object.(type) {
	case *storagev1.StorageClass:
		return factory.Storage().V1().StorageClasses().Informer().GetIndexer()
	case *v1.PersistentVolume:
		return factory.Core().V1().PersistentVolumes().Informer().GetIndexer()
	case *v1.PersistentVolumeClaim:
		return factory.Core().V1().PersistentVolumeClaims().Informer().GetIndexer()
	case *policyv1.PodDisruptionBudget:
		return factory.Policy().V1().PodDisruptionBudgets().Informer().GetIndexer()
	case *appsv1.ReplicaSet:
		return factory.Apps().V1().ReplicaSets().Informer().GetIndexer()
	case *v1.Service:
		return factory.Core().V1().Services().Informer().GetIndexer()
	}
	panic(fmt.Sprintf("no informer for %T", object))
}

// putNamespace creates or replaces a namespace.
func (w *world) putNamespace(name string, team bool) {
	for _, factory := range w.informers {
		w.must(factory.Core().V1().Namespaces().Informer().GetIndexer().Add(generate.Namespace(name, team)))
	}
	w.namespacesChanged()
}

// namespacesChanged does what the handlers of namespace events do in a scheduler whose informers run.
func (w *world) namespacesChanged() {
	w.ranker.Outdated.Store(true)
	for _, shard := range w.shards {
		shard.ranker.Outdated.Store(true)
	}
	if w.search != nil {
		w.search.Outdated.Store(true)
	}
}

// changeNamespace changes the labels of a namespace, or deletes it. Pods stay, as while a namespace terminates.
func (w *world) changeNamespace() {
	name := generate.Pick(w.Rand, generate.Namespaces)
	if w.Chance(70) {
		w.record("change namespace %s", name)
		w.putNamespace(name, w.Chance(50))
		return
	}
	w.record("remove namespace %s", name)
	for _, factory := range w.informers {
		w.must(factory.Core().V1().Namespaces().Informer().GetIndexer().Delete(&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	w.namespacesChanged()
}

// changeDeviceClass creates or deletes a DeviceClass for GPUs. While it exists, nodes that have no GPU from a
// device plugin could have one from a driver, but none does.
func (w *world) changeDeviceClass() {
	class, create := w.deviceClass, w.deviceClass == nil
	if create {
		class = &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}, Spec: resourcev1.DeviceClassSpec{ExtendedResourceName: ptr.To("example.com/gpu")}}
		w.deviceClass = class
	} else {
		w.deviceClass = nil
	}
	w.record("DeviceClass exists: %t", create)
	w.push(class, !create)
}

// trimmed returns a copy of an object without the fields that informers drop.
func trimmed[T interface{ DeepCopy() T }](w *world, object T) T {
	w.t.Helper()
	copied, err := w.trimmer.Transform(object.DeepCopy())
	w.must(err)
	return copied.(T)
}

// must fails the test if there is an error.
func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// run makes random changes and decisions.
func (w *world) run(decisions int) {
	for w.decisions < decisions && !w.t.Failed() {
		switch n := w.Rand.IntN(100); {
		case n < 3:
			w.addNode()
		case n < 5:
			w.removeNode()
		case n < 12:
			w.changeNode()
		case n < 25:
			w.removePod()
		case n < 30:
			w.changePod()
		case n < 32:
			w.nominate()
		case n < 33:
			w.changeNamespace()
		case n < 34:
			w.changeDeviceClass()
		case n < 36:
			w.changeStorage()
		default:
			w.schedule()
		}
	}
}

// record remembers a change, for the message of a failure.
func (w *world) record(format string, args ...any) {
	w.history = append(w.history, fmt.Sprintf(format, args...))
}

func (w *world) addNode() {
	node := w.Node()
	w.Nodes[node.Name] = node
	w.record("add %s", node.Name)
	w.cacheOf(node.Name).AddNode(klog.Logger{}, trimmed(w, node))
	w.putCSINode(node.Name)
	w.addDevices(node.Name)
}

func (w *world) removeNode() {
	node := w.RandomNode()
	if node == nil || len(w.Nodes) < 3 {
		return
	}
	w.record("remove %s", node.Name)
	delete(w.Nodes, node.Name)
	w.must(w.cacheOf(node.Name).RemoveNode(klog.Logger{}, trimmed(w, node)))
}

func (w *world) changeNode() {
	node := w.RandomNode()
	if node == nil {
		return
	}
	changed := w.ChangedNode(node)
	w.record("change %s", node.Name)
	w.Nodes[node.Name] = changed
	w.cacheOf(node.Name).UpdateNode(klog.Logger{}, trimmed(w, node), trimmed(w, changed))
}

func (w *world) removePod() {
	if pod := w.RandomPod(); pod != nil {
		w.record("remove %s", pod.Name)
		delete(w.Pods, pod.UID)
		w.must(w.cacheOf(pod.Spec.NodeName).RemovePod(klog.Logger{}, trimmed(w, pod)))
		w.dropClaim(pod)
	}
}

// changePod starts the termination of a pod or changes its labels.
func (w *world) changePod() {
	pod := w.RandomPod()
	if pod == nil {
		return
	}
	changed := w.ChangedPod(pod)
	w.record("change %s", pod.Name)
	w.Pods[pod.UID] = changed
	w.must(w.cacheOf(pod.Spec.NodeName).UpdatePod(klog.Logger{}, trimmed(w, pod), trimmed(w, changed)))
}

// nominate creates a pending pod that is nominated to a node. If many are, the oldest nomination
// ends.
func (w *world) nominate() {
	if len(w.nominated) > 8 {
		w.removeNomination(w.nominated[0])
	}
	node := w.RandomNode()
	if node == nil {
		return
	}
	pod := w.Pod()
	if rank.NamesNodes(&pod.Spec) {
		// Such a pod can only be nominated to a node that it names.
		return
	}
	pod.Status.NominatedNodeName = node.Name
	w.record("nominate %s to %s", pod.Name, node.Name)
	w.nominated = append(w.nominated, pod)
	// The queue records a nomination only if the informer has the pod.
	w.must(w.informers[0].Core().V1().Pods().Informer().GetIndexer().Add(pod))
	w.sched.SchedulingQueue.Add(w.ctx, trimmed(w, pod))
	for _, shard := range w.shards {
		info, err := framework.NewPodInfo(trimmed(w, pod))
		w.must(err)
		shard.ranker.Nominations.AddRemote(node.Name, info)
	}
	w.must(w.reference.Nominate(w.nominated))
}

// removeNomination removes a nominated pod from the queue and its nomination from the shards.
func (w *world) removeNomination(pod *v1.Pod) {
	w.nominated = slices.DeleteFunc(slices.Clone(w.nominated), func(other *v1.Pod) bool { return other == pod })
	w.sched.SchedulingQueue.Delete(klog.Logger{}, trimmed(w, pod))
	for _, shard := range w.shards {
		shard.ranker.Nominations.RemoveRemote(pod.Status.NominatedNodeName, pod.UID)
	}
	w.must(w.reference.Nominate(w.nominated))
}

// nextPod returns a new pod, or sometimes a nominated pod.
func (w *world) nextPod() *v1.Pod {
	if len(w.nominated) > 0 && w.Chance(5) {
		return generate.Pick(w.Rand, w.nominated)
	}
	pod := w.Pod()
	if w.search == nil && len(pod.Spec.Volumes) == 0 && w.Chance(8) {
		w.claimDevices(pod, w.Chance(20))
	}
	return pod
}

// schedulers returns the scheduler and those of the shards.
func (w *world) schedulers() []*kubescheduler.Scheduler {
	all := []*kubescheduler.Scheduler{w.sched}
	for _, shard := range w.shards {
		all = append(all, shard.sched)
	}
	return all
}

// schedule schedules a pod and binds it. With shards, it sometimes schedules several copies of the
// pod, so that the leader reuses the answer to its query.
func (w *world) schedule() {
	pod := w.nextPod()
	copies := 1
	if w.search != nil {
		w.search.EndBatch()
		if pod.Status.NominatedNodeName == "" && w.Chance(30) {
			copies += w.Rand.IntN(10)
		}
	}
	for i := range copies {
		next := pod
		if i > 0 {
			next = w.copyForBatch(pod)
		}
		result, err := w.scheduleAndCompare(next)
		if err != nil {
			if w.search != nil && !w.t.Failed() {
				w.comparePreemption(next)
			}
			w.dropClaim(next)
			return
		}
		w.allocate(next, result.SuggestedHost)
		w.bind(next, result.SuggestedHost)
	}
}

// copyForBatch returns a copy of a pod that sometimes has another priority. Sometimes another pod is nominated
// meanwhile.
func (w *world) copyForBatch(pod *v1.Pod) *v1.Pod {
	if w.Chance(5) {
		w.nominate()
	}
	next := w.Copy(pod)
	if w.Chance(20) {
		next.Spec.Priority = ptr.To(int32(w.Rand.IntN(3)))
	}
	return next
}

// scheduleAndCompare makes one decision and compares it with that of the reference.
func (w *world) scheduleAndCompare(pod *v1.Pod) (kubescheduler.ScheduleResult, error) {
	return w.scheduleAndCompareTo(pod, w.referenceDecision(pod))
}

// scheduleAndCompareTo makes one decision and compares it with a decision of the reference.
func (w *world) scheduleAndCompareTo(pod *v1.Pod, want reference.Decision) (kubescheduler.ScheduleResult, error) {
	w.updateSnapshots()
	// The queue ignores malformed terms, too.
	info, _ := framework.NewPodInfo(trimmed(w, pod))
	fallbacks, asked := w.ranker.FallbackCount, w.ranker.AskedCount
	w.lastState = framework.NewCycleState()
	result, err := w.sched.SchedulePod(w.ctx, w.sched.Profiles[v1.DefaultSchedulerName], w.lastState, &framework.QueuedPodInfo{PodInfo: info})
	w.decisions++
	ranked, counted := w.ranker.FallbackCount == fallbacks, w.ranker.AskedCount == asked
	if ranked {
		w.ranked++
		if w.search == nil && !rank.NamesNodes(&pod.Spec) {
			w.audit(pod, info)
		}
	} else {
		w.fallbacks[string(w.ranker.LastFallback)]++
	}
	// The full scan also finds a best node: it samples nodes only if there are at least 100.
	switch problem := want.Check(result, err, counted); {
	case problem != "":
		w.fail(pod, "%s", problem)
	case err != nil:
		w.compareErrors(pod, err, want.FitError)
	case ranked && w.search == nil && len(w.nominated) == 0 && want.Scores != nil && !restricted(pod):
		w.compareScores(pod, info, want.Scores)
	}
	return result, err
}

// updateSnapshots makes the schedulers apply all pending changes, as at the start of a cycle.
func (w *world) updateSnapshots() {
	for _, sched := range w.schedulers() {
		w.must(sched.Cache.UpdateSnapshot(klog.Logger{}, sched.Profiles[v1.DefaultSchedulerName].SnapshotSharedLister().(*schedcache.Snapshot)))
	}
}

// restricted returns whether the class of a pod does not contain all that restricts the pod: its volumes, claims and the nodes
// that it names.
func restricted(pod *v1.Pod) bool {
	return len(pod.Spec.Volumes)+len(pod.Spec.ResourceClaims) > 0 || rank.NamesNodes(&pod.Spec)
}

// compareScores compares the scores of all nodes that fit with those of the reference.
func (w *world) compareScores(pod *v1.Pod, info *framework.PodInfo, want map[string]int64) {
	class, _, err := w.ranker.Class(w.ctx, w.ranker.Profiles[v1.DefaultSchedulerName], info, nil)
	w.must(err)
	got := map[string]int64{}
	for id, score := range class.Scores() {
		got[w.ranker.Cluster.ByID[id].Info.Node().Name] = score
	}
	if !maps.Equal(got, want) {
		w.fail(pod, "scores = %v, want %v", got, want)
	}
}

// compareErrors compares an error of SchedulePod with that of the reference.
func (w *world) compareErrors(pod *v1.Pod, err error, want *framework.FitError) {
	got, ok := err.(*framework.FitError)
	if !ok || got.Error() != want.Error() {
		w.fail(pod, "SchedulePod() = error %q, want %q", err, want)
		return
	}
	for name := range w.Nodes {
		if w.search != nil {
			// The leader does not get the names of nodes that do not fit.
			break
		}
		got, want := got.Diagnosis.NodeToStatus.Get(name), want.Diagnosis.NodeToStatus.Get(name)
		// NodeResourcesFit lists the resources that a node lacks in random order.
		if got.Code() != want.Code() || !slices.Equal(slices.Sorted(slices.Values(got.Reasons())), slices.Sorted(slices.Values(want.Reasons()))) {
			w.fail(pod, "status of %s = %v, want %v", name, got, want)
		}
	}
	if got, want := got.Diagnosis.UnschedulablePlugins, want.Diagnosis.UnschedulablePlugins; !got.Equal(want) {
		w.fail(pod, "UnschedulablePlugins = %v, want %v", got, want)
	}
}

// audit compares the pod's class with a class that is built anew, which finds errors in the index
// before they lead to a wrong decision.
func (w *world) audit(pod *v1.Pod, info *framework.PodInfo) {
	class, _, err := w.ranker.Class(w.ctx, w.ranker.Profiles[v1.DefaultSchedulerName], info, nil)
	if err == nil {
		err = class.Audit()
	}
	if err != nil {
		w.fail(pod, "auditing the pod's class: %v", err)
	}
}

// bind assumes a pod on a node and confirms it.
func (w *world) bind(pod *v1.Pod, node string) {
	if slices.Contains(w.nominated, pod) {
		w.removeNomination(pod)
		pod.Status.NominatedNodeName = ""
	}
	pod.Spec.NodeName = node
	w.record("bind %s to %s", pod.Name, node)
	w.Pods[pod.UID] = pod
	w.must(w.cacheOf(node).AssumePod(klog.Logger{}, trimmed(w, pod)))
	w.must(w.cacheOf(node).AddPod(klog.Logger{}, trimmed(w, pod)))
	if w.search != nil {
		w.search.Placed(pod.UID)
	}
}

// fail reports an error with the pod and the latest changes.
func (w *world) fail(pod *v1.Pod, format string, args ...any) {
	w.t.Helper()
	w.failures++
	w.t.Errorf("seed %d, decision %d: "+format, append([]any{w.seed, w.decisions}, args...)...)
	spec, labels := pod.Spec.DeepCopy(), pod.Labels
	w.t.Logf("pod %s/%s labels %v\naffinity %v\nspread %v\nselector %v tolerations %v\ncontainers %v", pod.Namespace, pod.Name, labels,
		spec.Affinity, spec.TopologySpreadConstraints, spec.NodeSelector, spec.Tolerations, spec.Containers)
	w.t.Logf("the latest changes: %s", strings.Join(w.history[max(0, len(w.history)-12):], ", "))
}

// referenceDecision returns the decision of the reference about a pod.
func (w *world) referenceDecision(pod *v1.Pod) reference.Decision {
	nodes, pods := slices.Collect(maps.Values(w.Nodes)), slices.Collect(maps.Values(w.Pods))
	decision, err := w.reference.Decide(w.ctx, pods, nodes, pod)
	w.must(err)
	return decision
}
