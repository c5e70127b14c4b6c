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
)

// TestEventsInDisorder repeats, swaps and drops events until watches list again. Then the cache has
// to equal upstream's cache of the same objects.
func TestEventsInDisorder(t *testing.T) {
	random := schedtest.RandomSeed(t)
	for range 5 {
		s := newStorm(t, random)
		for range 10 {
			for range 150 {
				s.step()
			}
			s.calm()
		}
		if t.Failed() {
			return
		}
	}
}

// TestPodReplacedUnseen deletes a pod and creates another of its name between two watches, so that
// the scheduler receives one update.
func TestPodReplacedUnseen(t *testing.T) {
	on := func(name, uid, node string) *v1.Pod {
		pod := schedtest.PlainPod(name, "1")
		pod.UID, pod.Spec.NodeName = types.UID(uid), node
		return pod
	}
	for _, nodes := range [][2]string{{"a", "b"}, {"a", "a"}, {"a", ""}, {"", "a"}, {"", ""}} {
		t.Run(fmt.Sprintf("from %q to %q", nodes[0], nodes[1]), func(t *testing.T) {
			l := schedtest.NewScripted(t, schedtest.NewAPI())
			l.API.Put(schedtest.PlainNode("a", "4"))
			l.API.Put(schedtest.PlainNode("b", "4"))
			before := on("pod", "before", nodes[0])
			l.API.Put(before)
			if nodes[0] == "" {
				// The bind has not been delivered to the scheduler yet.
				l.Refresh()
				l.Must(l.Sched.Cache.AssumePod(klog.Logger{}, on("pod", "before", "a")))
			}
			l.Refresh()
			l.API.Gap(func() {
				l.API.Remove(before)
				l.API.Put(on("pod", "after", nodes[1]))
			})
			l.Must(l.Differs())
		})
	}
}

// storm makes random changes in a cluster. The test acts as the scheduling cycle.
type storm struct {
	*schedtest.Live
	// made generates nodes and pods.
	made  *world
	count int
	// assumed pods, whose binds are under way.
	assumed map[types.UID]*v1.Pod
}

func newStorm(t *testing.T, random *rand.Rand) *storm {
	s := &storm{Live: schedtest.NewScripted(t, schedtest.NewAPI()), made: &world{t: t, rand: random, trimmer: cache.NewTrimmer()}, assumed: map[types.UID]*v1.Pod{}}
	// So that some operations are carried out between cycles.
	s.Sched.Cache.(*cache.Cache).Batch = 7
	s.Ranker.Cluster.SpareNames = 100
	return s
}

func (s *storm) chance(percent int) bool { return s.made.chance(percent) }

// step does one thing, on a server whose watches are in disorder at times.
func (s *storm) step() {
	s.setDisorder(s.chance(50))
	switch n := s.made.rand.IntN(100); {
	case n < 5:
		s.putNode(fmt.Sprintf("node-%d", s.made.rand.IntN(30)))
	case n < 8:
		s.removeNode()
	case n < 30:
		s.putPod(fmt.Sprintf("pod-%d", s.made.rand.IntN(150)))
	case n < 45:
		s.changePod()
	case n < 55:
		s.removePod()
	case n < 75:
		s.assume()
	case n < 92:
		s.finish()
	case n < 95:
		s.API.Gap(func() {
			for range s.made.rand.IntN(20) {
				s.unseen()
			}
		})
	default:
		s.Refresh()
		if s.chance(50) {
			s.Sched.Cache.(*cache.Cache).EndCycle(klog.Logger{})
		}
	}
}

// unseen makes a change that no watch reports.
func (s *storm) unseen() {
	switch s.made.rand.IntN(7) {
	case 0:
		s.putNode(fmt.Sprintf("node-%d", s.made.rand.IntN(30)))
	case 1:
		s.removeNode()
	case 2:
		s.removePod()
	case 3:
		// Another under the same name, where it was or elsewhere.
		if pod := s.anyPod(); pod != nil {
			s.API.Remove(pod)
			s.putPod(pod.Name)
		}
	case 4:
		s.putPod(fmt.Sprintf("pod-%d", s.made.rand.IntN(150)))
	case 5:
		s.finish()
	default:
		s.changePod()
	}
}

func (s *storm) setDisorder(on bool) {
	s.API.Mu.Lock()
	defer s.API.Mu.Unlock()
	s.API.Disorder = nil
	if on {
		s.API.Disorder = rand.New(rand.NewPCG(s.made.rand.Uint64(), 0))
	}
}

// calm ends the disorder and compares.
func (s *storm) calm() {
	s.T.Helper()
	for len(s.assumed) > 0 {
		s.finish()
	}
	s.setDisorder(false)
	s.API.Gap(func() {})
	s.Must(s.Differs())
	s.decide()
}

// putNode creates a node, or changes it.
func (s *storm) putNode(name string) {
	s.count++
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(fmt.Sprintf("%s.%d", name, s.count)), Labels: map[string]string{}}}
	s.made.describe(node)
	s.API.Put(node)
}

func (s *storm) removeNode() {
	if nodes := s.API.Nodes(); len(nodes) > 3 {
		s.API.Remove(pick(s.made, nodes))
	}
}

// putPod creates a pod, unless there is one; some are on a node at once.
func (s *storm) putPod(name string) {
	s.count++
	s.made.count = s.count
	pod := s.made.randomPodSpec()
	pod.Name, pod.Namespace, pod.UID = name, "default", types.UID(fmt.Sprintf("%s.%d", name, s.count))
	if s.API.Pod("default/"+name) != nil {
		return
	}
	for i := range pod.Spec.Containers[0].Ports {
		// Upstream keeps a set of ports, and forgets one when the first of two pods goes
		// that use it, as no two of a node can.
		pod.Spec.Containers[0].Ports[i].HostPort = int32(8000 + s.count)
	}
	if s.chance(20) {
		pod.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprintf("claim-%d", s.made.rand.IntN(5))},
		}}}
	}
	if s.chance(40) {
		pod.Spec.NodeName = s.nodeName()
	}
	s.API.Put(pod)
}

// nodeName may be that of a node that is not there.
func (s *storm) nodeName() string { return fmt.Sprintf("node-%d", s.made.rand.IntN(30)) }

func (s *storm) anyPod() *v1.Pod {
	if pods := s.API.Pods(); len(pods) > 0 {
		return pick(s.made, pods)
	}
	return nil
}

func (s *storm) removePod() {
	if pod := s.anyPod(); pod != nil {
		s.API.Remove(pod)
	}
}

// changePod makes a new version of a pod.
func (s *storm) changePod() {
	pod := s.anyPod()
	if pod == nil {
		return
	}
	changed := pod.DeepCopy()
	switch s.made.rand.IntN(4) {
	case 0:
		changed.Labels["app"] = pick(s.made, apps)
	case 1:
		now := metav1.Now()
		changed.DeletionTimestamp = &now
	case 2:
		changed.Status.Phase = v1.PodRunning
	default:
		// In place, as kubelet and users do.
		changed.Spec.Containers[0].Resources.Requests = schedtest.Resources(pick(s.made, []string{"50m", "300m"}), "256Mi")
	}
	s.API.Put(changed)
}

// assume assumes a pending pod on a node, before its bind.
func (s *storm) assume() {
	// It can only be one that the scheduler has heard of.
	heard, err := s.Informers.Core().V1().Pods().Lister().List(labels.Everything())
	s.Must(err)
	nodes := s.API.Nodes()
	if len(heard) == 0 {
		return
	}
	slices.SortFunc(heard, func(a, b *v1.Pod) int { return strings.Compare(a.Name, b.Name) })
	pod := pick(s.made, heard)
	if pod.Spec.NodeName != "" || s.assumed[pod.UID] != nil || pod.DeletionTimestamp != nil || len(nodes) == 0 {
		return
	}
	s.Refresh()
	assumed := pod.DeepCopy()
	assumed.Spec.NodeName = pick(s.made, nodes).Name
	if s.Sched.Cache.AssumePod(klog.Logger{}, assumed) == nil {
		s.assumed[pod.UID] = assumed
	}
}

// finish binds an assumed pod, or fails, or gets an error for a bind that took place.
func (s *storm) finish() {
	if len(s.assumed) == 0 {
		return
	}
	pod := s.assumed[pick(s.made, slices.Sorted(maps.Keys(s.assumed)))]
	delete(s.assumed, pod.UID)
	var err error
	if s.chance(30) {
		err = schedtest.TimeoutError()
	}
	if err == nil || s.chance(50) {
		binding := &v1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}}
		binding.Target.Name = pod.Spec.NodeName
		if failed := s.API.Bind(binding); failed != nil {
			err = failed
		}
	}
	if err != nil {
		_ = s.Sched.Cache.ForgetPod(klog.Logger{}, pod)
	}
}

// decide compares some decisions with the reference.
func (s *storm) decide() {
	w := s.made
	w.ctx, w.sched, w.ranker = s.Ctx, s.Sched, s.Ranker
	w.reasons = map[string]int{}
	if w.reference == nil {
		w.reference = newReference(s.T, s.Ctx)
	}
	w.nodes, w.pods = map[string]*v1.Node{}, map[types.UID]*v1.Pod{}
	for _, node := range s.API.Nodes() {
		w.nodes[node.Name] = node
	}
	for _, pod := range s.API.Pods() {
		if pod.Spec.NodeName != "" {
			w.pods[pod.UID] = pod
		}
	}
	for range 10 {
		w.count++
		pod := w.randomPodSpec()
		pod.Namespace = "default"
		w.judge(pod)
	}
	// A pod that a node was found for is not carried over.
	s.Ranker.Cluster.ForgetRanked()
}
