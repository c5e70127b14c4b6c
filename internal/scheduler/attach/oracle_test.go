package attach_test

import (
	"context"
	"flag"
	"fmt"
	"hash/crc32"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	schedcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/attach"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/reference"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/leader"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// newReference is one that has nothing but nodes and pods.
func newReference(t *testing.T, ctx context.Context) *reference.Reference {
	t.Helper()
	made, err := reference.New(ctx, *schedtest.DefaultProfile(t), informers.NewSharedInformerFactory(fake.NewClientset(), 0))
	if err != nil {
		t.Fatal(err)
	}
	return made
}

var (
	rounds = flag.Int("oracle.clusters", 12, "clusters to make up, with some hundred decisions each")
)

// TestOracle generates clusters and pods, and compares each decision with kube-scheduler's plugins
// run on all nodes, in a snapshot made for that decision.
func TestOracle(t *testing.T) {
	first := schedtest.FirstSeed()
	ranked, all := 0, 0
	reasons := map[string]int{}
	for round := range *rounds {
		w := newWorld(t, first+uint64(round), 0)
		w.run(300)
		ranked, all = ranked+w.ranked, all+w.decisions
		for reason, count := range w.reasons {
			reasons[reason] += count
		}
		if t.Failed() {
			return
		}
	}
	t.Logf("seed %d: %d decisions, %d of them by the index; the others: %v", first, all, ranked, reasons)
	if ranked < all/3 {
		t.Errorf("the index made too few of the decisions to say much")
	}
}

// world is a cluster that is generated step by step.
type world struct {
	t      *testing.T
	seed   uint64
	rand   *rand.Rand
	ctx    context.Context
	sched  *kubescheduler.Scheduler
	ranker *rank.Ranker
	// informers of the scheduler and of the reference, and of shards; some plugins do not
	// share.
	informers []informers.SharedInformerFactory
	// shards are other schedulers that have the nodes, if there are any.
	shards []*worldShard
	search *leader.Search
	// questions that the leader asked, and preemptions that were compared.
	questions, preemptions int
	preemptor              *leader.Preemptor
	preemptionArgs         *config.DefaultPreemptionArgs
	reference              *reference.Reference
	// trimmer makes what the scheduler sees out of what the reference sees.
	trimmer   *cache.Trimmer
	nodes     map[string]*v1.Node
	pods      map[types.UID]*v1.Pod
	nominated []*v1.Pod
	count     int
	decisions int
	ranked    int
	reasons   map[string]int
	history   []string
}

func newWorld(t *testing.T, seed uint64, shards int) *world {
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.Logger{}))
	t.Cleanup(cancel)
	cfg, err := latest.Default()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		t: t, seed: seed, rand: rand.New(rand.NewPCG(seed, 0)), ctx: ctx,
		nodes: map[string]*v1.Node{}, pods: map[types.UID]*v1.Pod{}, reasons: map[string]int{},
		trimmer: cache.NewTrimmer(), informers: make([]informers.SharedInformerFactory, 2+shards),
	}
	for i := range w.informers {
		w.informers[i] = informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	}
	w.sched, w.ranker = w.newScheduler(w.informers[0], cfg.Profiles)
	for i := range shards {
		sched, ranker := w.newScheduler(w.informers[2+i], cfg.Profiles)
		w.shards = append(w.shards, &worldShard{sched, ranker})
	}
	if shards > 0 {
		w.search = leader.NewSearch(w.ranker, func(f func()) { f() }, shardOwners{w})
		w.sched.SchedulePod = w.search.SchedulePod
		w.shareDryRuns(cfg.Profiles[0])
	}
	w.reference, err = reference.New(ctx, cfg.Profiles[0], w.informers[1])
	w.store(err)
	w.populate()
	return w
}

func (w *world) newScheduler(from informers.SharedInformerFactory, profiles []config.KubeSchedulerProfile) (*kubescheduler.Scheduler, *rank.Ranker) {
	recorders := func(string) events.EventRecorderLogger { return events.NewFakeRecorder(1000) }
	sched, err := kubescheduler.New(w.ctx, fake.NewClientset(), from, nil, recorders, kubescheduler.WithProfiles(profiles...))
	w.store(err)
	parts, err := attach.New(sched, profiles)
	w.store(err)
	ranker := parts.Ranker
	// With few spare names, numbers are reassigned several times in a test.
	ranker.Cluster.SpareNames = 100
	// With no cost, nodes with nominated pods are always evaluated, never left to the full scan.
	ranker.NominatedNodeCost = 0
	return sched, ranker
}

// shareDryRuns lets shards propose whom to preempt, and the leader pick.
func (w *world) shareDryRuns(cfg config.KubeSchedulerProfile) {
	w.store(leader.ReplacePreemption(w.ctx, w.sched.Profiles[cfg.SchedulerName], cfg, w.search))
	profile := w.search.Profiles[cfg.SchedulerName]
	for _, shard := range w.shards {
		dryRuns, err := rank.NewDryRuns(w.ctx, shard.sched.Profiles[cfg.SchedulerName], cfg)
		w.store(err)
		shard.ranker.Profiles[cfg.SchedulerName].DryRuns = dryRuns
	}
	for _, plugin := range cfg.PluginConfig {
		if args, is := plugin.Args.(*config.DefaultPreemptionArgs); is {
			w.preemptionArgs = args
		}
	}
	w.preemptor = leader.NewPreemptor(profile.DryRuns, w.search, profile)
}

// cache is where the pods of a node belong.
func (w *world) cache(node string) schedcache.Cache {
	if len(w.shards) == 0 {
		return w.sched.Cache
	}
	return w.shards[crc32.ChecksumIEEE([]byte(node))%uint32(len(w.shards))].sched.Cache
}

var (
	zones      = []string{"a", "b", "c"}
	apps       = []string{"web", "db", "cache", "job"}
	namespaces = []string{"default", "team-a", "team-b"}
)

func (w *world) chance(percent int) bool { return w.rand.IntN(100) < percent }

func pick[T any](w *world, from []T) T { return from[w.rand.IntN(len(from))] }

// populate makes what there is besides nodes and pods.
func (w *world) populate() {
	for _, name := range namespaces {
		labels := map[string]string{v1.LabelMetadataName: name}
		if name != "default" {
			labels["team"] = "yes"
		}
		namespace := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
		for _, from := range w.informers {
			w.store(from.Core().V1().Namespaces().Informer().GetIndexer().Add(namespace))
		}
	}
	for _, from := range w.informers {
		w.addVolumes(from)
		w.addBudgets(from)
	}
	for _, app := range apps {
		set := &appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{Name: app, Namespace: "default"},
			Spec:       appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
		}
		for _, from := range w.informers {
			w.store(from.Apps().V1().ReplicaSets().Informer().GetIndexer().Add(set))
		}
	}
	service := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "team-a"},
		Spec:       v1.ServiceSpec{Selector: map[string]string{"app": "web"}},
	}
	for _, from := range w.informers {
		w.store(from.Core().V1().Services().Informer().GetIndexer().Add(service))
	}
	for range 3 + w.rand.IntN(25) {
		w.addNode()
	}
}

// trimmed is what informers keep of an object.
func trimmed[T interface{ DeepCopy() T }](w *world, object T) T {
	w.t.Helper()
	kept, err := w.trimmer.Transform(object.DeepCopy())
	w.store(err)
	return kept.(T)
}

func (w *world) store(err error) {
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) run(decisions int) {
	for w.decisions < decisions && !w.t.Failed() {
		switch n := w.rand.IntN(100); {
		case n < 3:
			w.addNode()
		case n < 5:
			w.removeNode()
		case n < 12:
			w.changeNode()
		case n < 25:
			w.removePod()
		case n < 30:
			w.terminatePod()
		case n < 32:
			w.nominate()
		default:
			w.schedule()
		}
	}
}

func (w *world) note(format string, args ...any) {
	w.history = append(w.history, fmt.Sprintf(format, args...))
}

func (w *world) addNode() {
	w.count++
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", w.count), Labels: map[string]string{}}}
	w.describe(node)
	w.nodes[node.Name] = node
	w.note("add %s", node.Name)
	w.cache(node.Name).AddNode(klog.Logger{}, trimmed(w, node))
}

// describe gives a node random properties.
func (w *world) describe(node *v1.Node) {
	if !w.chance(5) {
		node.Labels[v1.LabelHostname] = node.Name
	}
	if !w.chance(15) {
		node.Labels[v1.LabelTopologyZone] = pick(w, zones)
	}
	if w.chance(50) {
		node.Labels["disk"] = pick(w, []string{"ssd", "hdd"})
	}
	if w.chance(40) {
		node.Labels["rack"] = fmt.Sprint(w.rand.IntN(5))
	}
	node.Spec.Unschedulable = w.chance(4)
	node.Spec.Taints = nil
	for _, effect := range []v1.TaintEffect{v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule, v1.TaintEffectPreferNoSchedule} {
		if w.chance(15) {
			node.Spec.Taints = append(node.Spec.Taints, v1.Taint{Key: pick(w, []string{"gpu", "spot", "old"}), Value: "yes", Effect: effect})
		}
	}
	node.Status.Allocatable = schedtest.Resources(pick(w, []string{"4", "8", "3500m"}), pick(w, []string{"8Gi", "16Gi"}))
	node.Status.Allocatable[v1.ResourcePods] = schedtest.Quantity(pick(w, []string{"8", "20", "110"}))
	if w.chance(20) {
		node.Status.Allocatable["example.com/gpu"] = schedtest.Quantity("2")
	}
	node.Status.Images = nil
	for _, image := range []string{"nginx:latest", "redis:7", "huge:1"} {
		if w.chance(30) {
			node.Status.Images = append(node.Status.Images, v1.ContainerImage{Names: []string{image}, SizeBytes: imageBytes[image]})
		}
	}
}

var imageBytes = map[string]int64{"nginx:latest": 200 << 20, "redis:7": 40 << 20, "huge:1": 900 << 20}

func (w *world) randomNode() *v1.Node {
	names := make([]string, 0, len(w.nodes))
	for name := range w.nodes {
		names = append(names, name)
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return w.nodes[pick(w, names)]
}

func (w *world) removeNode() {
	node := w.randomNode()
	if node == nil || len(w.nodes) < 3 {
		return
	}
	w.note("remove %s", node.Name)
	delete(w.nodes, node.Name)
	w.store(w.cache(node.Name).RemoveNode(klog.Logger{}, trimmed(w, node)))
}

func (w *world) changeNode() {
	node := w.randomNode()
	if node == nil {
		return
	}
	changed := node.DeepCopy()
	if w.chance(50) {
		changed.Labels = map[string]string{}
		w.describe(changed)
	} else {
		// A heartbeat.
		changed.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, LastHeartbeatTime: metav1.Now()}}
	}
	w.note("change %s", node.Name)
	w.nodes[node.Name] = changed
	w.cache(node.Name).UpdateNode(klog.Logger{}, trimmed(w, node), trimmed(w, changed))
}

func (w *world) randomPod() *v1.Pod {
	uids := make([]string, 0, len(w.pods))
	for uid := range w.pods {
		uids = append(uids, string(uid))
	}
	if len(uids) == 0 {
		return nil
	}
	slices.Sort(uids)
	return w.pods[types.UID(pick(w, uids))]
}

func (w *world) removePod() {
	if pod := w.randomPod(); pod != nil {
		w.note("remove %s", pod.Name)
		delete(w.pods, pod.UID)
		w.store(w.cache(pod.Spec.NodeName).RemovePod(klog.Logger{}, trimmed(w, pod)))
	}
}

func (w *world) terminatePod() {
	pod := w.randomPod()
	if pod == nil {
		return
	}
	changed := pod.DeepCopy()
	if w.chance(50) {
		now := metav1.Now()
		changed.DeletionTimestamp = &now
	} else {
		changed.Labels["app"] = pick(w, apps)
	}
	w.note("change %s", pod.Name)
	w.pods[pod.UID] = changed
	w.store(w.cache(pod.Spec.NodeName).UpdatePod(klog.Logger{}, trimmed(w, pod), trimmed(w, changed)))
}

// nominate lets a pod wait for a node, in the place of one that has waited for long.
func (w *world) nominate() {
	if len(w.nominated) > 8 {
		w.withdraw(w.nominated[0])
	}
	node := w.randomNode()
	if node == nil {
		return
	}
	w.count++
	pod := w.randomPodSpec()
	if rank.NamesNodes(&pod.Spec) {
		// It would be nominated to one of those.
		return
	}
	pod.Status.NominatedNodeName = node.Name
	w.note("nominate %s to %s", pod.Name, node.Name)
	w.nominated = append(w.nominated, pod)
	// Only pods that exist can be nominated.
	w.store(w.informers[0].Core().V1().Pods().Informer().GetIndexer().Add(pod))
	w.sched.SchedulingQueue.Add(w.ctx, trimmed(w, pod))
	for _, shard := range w.shards {
		info, err := framework.NewPodInfo(trimmed(w, pod))
		w.store(err)
		shard.ranker.Nominations.AddRemote(node.Name, info)
	}
	w.store(w.reference.Nominate(w.nominated))
}

func (w *world) withdraw(pod *v1.Pod) {
	w.nominated = slices.DeleteFunc(slices.Clone(w.nominated), func(other *v1.Pod) bool { return other == pod })
	w.sched.SchedulingQueue.Delete(klog.Logger{}, trimmed(w, pod))
	for _, shard := range w.shards {
		shard.ranker.Nominations.RemoveRemote(pod.Status.NominatedNodeName, pod.UID)
	}
	w.store(w.reference.Nominate(w.nominated))
}

// nextPod is a new one, or one that waits for a node.
func (w *world) nextPod() *v1.Pod {
	if len(w.nominated) > 0 && w.chance(5) {
		return pick(w, w.nominated)
	}
	w.count++
	return w.randomPodSpec()
}

// schedulers are all that keep nodes or nominated pods.
func (w *world) schedulers() []*kubescheduler.Scheduler {
	all := []*kubescheduler.Scheduler{w.sched}
	for _, shard := range w.shards {
		all = append(all, shard.sched)
	}
	return all
}

// schedule makes decisions about a pod, and now and then more of its kind, and carries
// them out.
func (w *world) schedule() {
	pod := w.nextPod()
	copies := 1
	if w.search != nil {
		w.search.EndBatch()
		if pod.Status.NominatedNodeName == "" && w.chance(30) {
			copies += w.rand.IntN(10)
		}
	}
	for i := range copies {
		next := pod
		if i > 0 {
			next = w.another(pod)
		}
		result, err := w.judge(next)
		if err != nil {
			if w.search != nil && !w.t.Failed() {
				w.preempts(next)
			}
			return
		}
		w.place(next, result.SuggestedHost)
	}
}

// another is a pod like one that has been placed.
func (w *world) another(pod *v1.Pod) *v1.Pod {
	w.count++
	next := pod.DeepCopy()
	next.Name = fmt.Sprintf("pod-%d", w.count)
	next.UID = types.UID(next.Name)
	next.Spec.NodeName = ""
	next.Status.StartTime = &metav1.Time{Time: time.Unix(int64(w.rand.IntN(1<<30)), 0)}
	return next
}

// judge makes one decision, and compares it with the reference's.
func (w *world) judge(pod *v1.Pod) (kubescheduler.ScheduleResult, error) {
	info, err := framework.NewPodInfo(trimmed(w, pod))
	w.store(err)
	for _, sched := range w.schedulers() {
		w.store(sched.Cache.UpdateSnapshot(klog.Logger{}, sched.Profiles[v1.DefaultSchedulerName].SnapshotSharedLister().(*schedcache.Snapshot)))
	}
	want := w.expected(pod)
	searches := w.ranker.FallbackCount
	result, err := w.sched.SchedulePod(w.ctx, w.sched.Profiles[v1.DefaultSchedulerName], framework.NewCycleState(), &framework.QueuedPodInfo{PodInfo: info})
	w.decisions++
	ranked := w.ranker.FallbackCount == searches
	if ranked {
		w.ranked++
		if w.search == nil {
			w.audit(pod, info)
		}
	} else {
		w.reasons[string(w.ranker.LastFallback)]++
	}
	switch {
	case err != nil && want.Feasible > 0:
		w.fail(pod, "no node was found (%v), but the best are %v", err, want.Best)
	case err != nil:
		w.compare(pod, err, want.FitError)
	case want.Feasible == 0:
		w.fail(pod, "%s was chosen, but %v", result.SuggestedHost, want.FitError)
	case ranked && !want.Best.Has(result.SuggestedHost):
		// Upstream's search, for pods that it is used for, looks at some nodes only.
		w.fail(pod, "%s was chosen, but the best are %v", result.SuggestedHost, want.Best)
	case ranked && result.FeasibleNodes != want.Feasible:
		w.fail(pod, "%d nodes are said to fit, but %d do", result.FeasibleNodes, want.Feasible)
	}
	return result, err
}

// compare holds an error against that of the reference.
func (w *world) compare(pod *v1.Pod, err error, want *framework.FitError) {
	have, ok := err.(*framework.FitError)
	if !ok || have.Error() != want.Error() {
		w.fail(pod, "the error is %q, and should be %q", err, want)
		return
	}
	for name := range w.nodes {
		if w.search != nil {
			// The names of nodes stay with the shards.
			break
		}
		have, want := have.Diagnosis.NodeToStatus.Get(name), want.Diagnosis.NodeToStatus.Get(name)
		if have.Code() != want.Code() || have.Message() != want.Message() {
			w.fail(pod, "%s is refused for %v, and should be for %v", name, have, want)
		}
	}
	if have, want := have.Diagnosis.UnschedulablePlugins, want.Diagnosis.UnschedulablePlugins; !have.Equal(want) {
		w.fail(pod, "the plugins that refuse are %v, and should be %v", have, want)
	}
}

// audit looks for errors in the index before they lead to a wrong decision.
func (w *world) audit(pod *v1.Pod, info *framework.PodInfo) {
	found, _, err := w.ranker.Class(w.ctx, w.ranker.Profiles[v1.DefaultSchedulerName], info, nil)
	if err == nil {
		err = found.Audit()
	}
	if err != nil {
		w.fail(pod, "%v", err)
	}
}

func (w *world) place(pod *v1.Pod, node string) {
	if slices.Contains(w.nominated, pod) {
		w.withdraw(pod)
		pod.Status.NominatedNodeName = ""
	}
	pod.Spec.NodeName = node
	w.note("%s on %s", pod.Name, node)
	w.pods[pod.UID] = pod
	w.store(w.cache(node).AssumePod(klog.Logger{}, trimmed(w, pod)))
	w.store(w.cache(node).AddPod(klog.Logger{}, trimmed(w, pod)))
	if w.search != nil {
		w.search.Placed(pod.UID)
	}
}

func (w *world) fail(pod *v1.Pod, format string, args ...any) {
	w.t.Helper()
	w.t.Errorf("seed %d, decision %d: "+format, append([]any{w.seed, w.decisions}, args...)...)
	spec, labels := pod.Spec.DeepCopy(), pod.Labels
	w.t.Logf("pod %s/%s labels %v\naffinity %v\nspread %v\nselector %v tolerations %v\ncontainers %v", pod.Namespace, pod.Name, labels,
		spec.Affinity, spec.TopologySpreadConstraints, spec.NodeSelector, spec.Tolerations, spec.Containers)
	w.t.Logf("the last changes: %s", strings.Join(w.history[max(0, len(w.history)-12):], ", "))
}

// expected is what the reference decides.
func (w *world) expected(pod *v1.Pod) reference.Decision {
	nodes, pods := slices.Collect(maps.Values(w.nodes)), slices.Collect(maps.Values(w.pods))
	decision, err := w.reference.Decide(w.ctx, pods, nodes, pod)
	w.store(err)
	return decision
}
