package attach_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest/generate"
)

// TestCacheRecoversFromDisorderedEvents repeats, swaps and drops events until watches list again.
// Then the cache must equal upstream's cache of the same objects.
func TestCacheRecoversFromDisorderedEvents(t *testing.T) {
	random := schedtest.NewRandom(t)
	for range 5 {
		s := newEventStorm(t, random)
		for range 10 {
			for range 150 {
				s.step()
			}
			s.endDisorder()
		}
		if t.Failed() {
			return
		}
	}
}

// TestCacheFollowsPodReplacedWithoutDeleteEvent deletes a pod and creates another with its name
// while no watch reports changes, so that the scheduler receives one update instead of a deletion
// and a creation.
func TestCacheFollowsPodReplacedWithoutDeleteEvent(t *testing.T) {
	podOn := func(name, uid, node string) *v1.Pod {
		pod := schedtest.PlainPod(name, "1")
		pod.UID, pod.Spec.NodeName = types.UID(uid), node
		return pod
	}
	for _, nodes := range [][2]string{{"a", "b"}, {"a", "a"}, {"a", ""}, {"", "a"}, {"", ""}} {
		t.Run(fmt.Sprintf("from node %q to node %q", nodes[0], nodes[1]), func(t *testing.T) {
			f := schedtest.NewScripted(t, schedtest.NewAPI())
			f.API.Put(schedtest.PlainNode("a", "4"))
			f.API.Put(schedtest.PlainNode("b", "4"))
			before := podOn("pod", "before", nodes[0])
			f.API.Put(before)
			if nodes[0] == "" {
				// The pod is assumed and its bind has not been executed yet.
				f.Refresh()
				f.Must(f.Sched.Cache.AssumePod(klog.Logger{}, podOn("pod", "before", "a")))
			}
			f.Refresh()
			f.API.WithoutEvents(func() {
				f.API.Remove(before)
				f.API.Put(podOn("pod", "after", nodes[1]))
			})
			f.Must(f.CheckState())
		})
	}
}

// eventStorm makes random changes in a cluster whose events arrive in disorder. The test itself
// assumes and binds pods; no scheduling cycle runs.
type eventStorm struct {
	*schedtest.Fixture
	// world generates nodes and pods.
	world      *world
	lastNumber int
	// assumed are the pods whose binds have not been executed.
	assumed map[types.UID]*v1.Pod
}

func newEventStorm(t *testing.T, random *rand.Rand) *eventStorm {
	s := &eventStorm{
		Fixture: schedtest.NewScripted(t, schedtest.NewAPI()), world: &world{Cluster: &generate.Cluster{Rand: random}, t: t, trimmer: cache.NewTrimmer()}, assumed: map[types.UID]*v1.Pod{},
	}
	// With a small batch, the cache also applies operations between cycles.
	s.Sched.Cache.(*cache.Cache).Batch = 7
	s.Ranker.Cluster.SpareNames, s.Ranker.Cluster.ReturnCycles = 100, 5
	return s
}

func (s *eventStorm) chance(percent int) bool { return s.world.Chance(percent) }

// step makes one change or applies pending changes. Half of all changes send events in disorder.
func (s *eventStorm) step() {
	s.setDisorder(s.chance(50))
	switch n := s.world.Rand.IntN(100); {
	case n < 5:
		s.putNode(fmt.Sprintf("node-%d", s.world.Rand.IntN(30)))
	case n < 8:
		s.removeNode()
	case n < 30:
		s.putPod(fmt.Sprintf("pod-%d", s.world.Rand.IntN(150)))
	case n < 45:
		s.changePod()
	case n < 55:
		s.removePod()
	case n < 75:
		s.assume()
	case n < 92:
		s.completeBind()
	case n < 95:
		s.API.WithoutEvents(func() {
			for range s.world.Rand.IntN(20) {
				s.changeUnwatched()
			}
		})
	default:
		s.Refresh()
		if s.chance(50) {
			s.Sched.Cache.(*cache.Cache).EndCycle(klog.Logger{})
		}
	}
}

// changeUnwatched makes one of the changes that happen while no watch reports them.
func (s *eventStorm) changeUnwatched() {
	switch s.world.Rand.IntN(7) {
	case 0:
		s.putNode(fmt.Sprintf("node-%d", s.world.Rand.IntN(30)))
	case 1:
		s.removeNode()
	case 2:
		s.removePod()
	case 3:
		// Replace a pod by another with its name, on the same node or elsewhere.
		if pod := s.randomPod(); pod != nil {
			s.API.Remove(pod)
			s.putPod(pod.Name)
		}
	case 4:
		s.putPod(fmt.Sprintf("pod-%d", s.world.Rand.IntN(150)))
	case 5:
		s.completeBind()
	default:
		s.changePod()
	}
}

func (s *eventStorm) setDisorder(on bool) {
	s.API.Mu.Lock()
	defer s.API.Mu.Unlock()
	s.API.Disorder = nil
	if on {
		s.API.Disorder = rand.New(rand.NewPCG(s.world.Rand.Uint64(), 0))
	}
}

// endDisorder completes all binds, ends the disorder, lets all watches list again, and compares the
// scheduler's state and some decisions with upstream.
func (s *eventStorm) endDisorder() {
	s.T.Helper()
	for len(s.assumed) > 0 {
		s.completeBind()
	}
	s.setDisorder(false)
	s.API.WithoutEvents(func() {})
	s.Must(s.CheckState())
	s.compareDecisions()
}

// putNode creates or replaces a node.
func (s *eventStorm) putNode(name string) {
	s.lastNumber++
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(fmt.Sprintf("%s.%d", name, s.lastNumber)), Labels: map[string]string{}}}
	s.world.RandomizeNode(node)
	s.API.Put(node)
}

func (s *eventStorm) removeNode() {
	if nodes := s.API.Nodes(); len(nodes) > 3 {
		s.API.Remove(generate.Pick(s.world.Rand, nodes))
	}
}

// putPod creates a pod, unless one with the name exists. Some pods are created with a node.
func (s *eventStorm) putPod(name string) {
	s.lastNumber++
	s.world.LastNumber = s.lastNumber - 1
	pod := s.world.Pod()
	pod.Name, pod.Namespace, pod.UID = name, "default", types.UID(fmt.Sprintf("%s.%d", name, s.lastNumber))
	if s.API.Pod("default/"+name) != nil {
		return
	}
	for i := range pod.Spec.Containers[0].Ports {
		// Host ports are unique: upstream keeps the ports of a node as a set, so it would forget a
		// port that two pods use when the first of them is removed.
		pod.Spec.Containers[0].Ports[i].HostPort = int32(8000 + s.lastNumber)
	}
	if s.chance(20) {
		pod.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprintf("claim-%d", s.world.Rand.IntN(5))},
		}}}
	}
	if s.chance(40) {
		pod.Spec.NodeName = s.randomNodeName()
	}
	s.API.Put(pod)
}

// randomNodeName returns the name of a node that may not exist.
func (s *eventStorm) randomNodeName() string { return fmt.Sprintf("node-%d", s.world.Rand.IntN(30)) }

// randomPod returns a pod, or nil if there is none.
func (s *eventStorm) randomPod() *v1.Pod {
	if pods := s.API.Pods(); len(pods) > 0 {
		return generate.Pick(s.world.Rand, pods)
	}
	return nil
}

func (s *eventStorm) removePod() {
	if pod := s.randomPod(); pod != nil {
		s.API.Remove(pod)
	}
}

// changePod changes a pod's labels, phase or resources, or starts its termination.
func (s *eventStorm) changePod() {
	pod := s.randomPod()
	if pod == nil {
		return
	}
	changed := pod.DeepCopy()
	switch s.world.Rand.IntN(4) {
	case 0:
		changed.Labels["app"] = generate.Pick(s.world.Rand, generate.Apps)
	case 1:
		now := metav1.Now()
		changed.DeletionTimestamp = &now
	case 2:
		changed.Status.Phase = v1.PodRunning
	default:
		// Resize the pod in place.
		changed.Spec.Containers[0].Resources.Requests = schedtest.Resources(generate.Pick(s.world.Rand, []string{"50m", "300m"}), "256Mi")
	}
	s.API.Put(changed)
}

// assume assumes a pending pod on a node. Only pods that the informers have can be assumed.
func (s *eventStorm) assume() {
	pods, err := s.Informers.Core().V1().Pods().Lister().List(labels.Everything())
	s.Must(err)
	nodes := s.API.Nodes()
	if len(pods) == 0 {
		return
	}
	slices.SortFunc(pods, func(a, b *v1.Pod) int { return strings.Compare(a.Name, b.Name) })
	pod := generate.Pick(s.world.Rand, pods)
	if pod.Spec.NodeName != "" || s.assumed[pod.UID] != nil || pod.DeletionTimestamp != nil || len(nodes) == 0 {
		return
	}
	s.Refresh()
	assumed := pod.DeepCopy()
	assumed.Spec.NodeName = generate.Pick(s.world.Rand, nodes).Name
	if s.Sched.Cache.AssumePod(klog.Logger{}, assumed) == nil {
		s.assumed[pod.UID] = assumed
	}
}

// completeBind ends the bind of an assumed pod: it is executed, or it fails, or it is executed and
// answered with an error. After an error, the scheduler forgets the pod.
func (s *eventStorm) completeBind() {
	if len(s.assumed) == 0 {
		return
	}
	pod := s.assumed[generate.Pick(s.world.Rand, slices.Sorted(maps.Keys(s.assumed)))]
	delete(s.assumed, pod.UID)
	var err error
	if s.chance(30) {
		err = schedtest.TimeoutError()
	}
	if err == nil || s.chance(50) {
		binding := &v1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}}
		binding.Target.Name = pod.Spec.NodeName
		if bindErr := s.API.Bind(binding); bindErr != nil {
			err = bindErr
		}
	}
	if err != nil {
		_ = s.Sched.Cache.ForgetPod(klog.Logger{}, pod)
	}
}

// compareDecisions compares ten decisions with the reference.
func (s *eventStorm) compareDecisions() {
	w := s.world
	w.ctx, w.sched, w.ranker = s.Ctx, s.Sched, s.Ranker
	w.fallbacks = map[string]int{}
	if w.reference == nil {
		w.reference = newReference(s.T, s.Ctx)
	}
	w.Nodes, w.Pods = map[string]*v1.Node{}, map[types.UID]*v1.Pod{}
	for _, node := range s.API.Nodes() {
		w.Nodes[node.Name] = node
	}
	for _, pod := range s.API.Pods() {
		if pod.Spec.NodeName != "" {
			w.Pods[pod.UID] = pod
		}
	}
	for range 10 {
		pod := w.Pod()
		pod.Namespace = "default"
		w.scheduleAndCompare(pod)
	}
	// The last pod is never assumed, so discard the pod info that is remembered for it.
	s.Ranker.Cluster.ForgetRanked()
}
