package scheduler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	upstream "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	plugins "k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	testingclock "k8s.io/utils/clock/testing"
)

// newFaulty is a scheduler that tries pods again at once. Its binds do not go through
// the fake client, which can do one thing at a time only.
func newFaulty(t *testing.T, nodes []*v1.Node, options ...upstream.Option) *live {
	t.Helper()
	server := newAPI()
	for _, node := range nodes {
		server.put(node)
	}
	profile := defaultProfile(t).DeepCopy()
	profile.Plugins.Bind = config.PluginSet{Enabled: []config.Plugin{{Name: "Binder"}}, Disabled: []config.Plugin{{Name: plugins.DefaultBinder}}}
	registry := runtime.Registry{"Binder": func(context.Context, kruntime.Object, fwk.Handle) (fwk.Plugin, error) {
		return binder{server}, nil
	}}
	return newLive(t, server, profile, append(options, upstream.WithFrameworkOutOfTreeRegistry(registry),
		upstream.WithPodInitialBackoffSeconds(0), upstream.WithPodMaxBackoffSeconds(0))...)
}

// binder binds as DefaultBinder does.
type binder struct{ api *api }

func (b binder) Name() string { return "Binder" }

func (b binder) Bind(_ context.Context, _ fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	binding := &v1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}}
	binding.Target.Name = node
	return fwk.AsStatus(b.api.bind(binding))
}

// awaitNode waits until a pod is bound, and returns where.
func (l *live) awaitNode(name string) (node string) {
	l.t.Helper()
	l.eventually(name+" is bound", func() error {
		pod := l.api.pod("default/" + name)
		if pod == nil || pod.Spec.NodeName == "" {
			return errors.New("it is not")
		}
		node = pod.Spec.NodeName
		return nil
	})
	return node
}

// boundOnce waits until a pod is bound, which has to be once.
func (l *live) boundOnce(pod *v1.Pod) {
	l.t.Helper()
	l.awaitNode(pod.Name)
	l.api.mu.Lock()
	defer l.api.mu.Unlock()
	if binds := l.api.binds[pod.UID]; binds != 1 {
		l.t.Errorf("%s was bound %d times", pod.Name, binds)
	}
}

// awaitRefusal waits until the scheduler has found no node for a pod.
func (l *live) awaitRefusal(name string) {
	l.t.Helper()
	l.eventually(name+" is unschedulable", func() error {
		pod := l.api.pod("default/" + name)
		if pod.Spec.NodeName != "" {
			l.t.Fatalf("%s is on %s", name, pod.Spec.NodeName)
		}
		for _, condition := range pod.Status.Conditions {
			if condition.Reason == v1.PodReasonUnschedulable {
				return nil
			}
		}
		return errors.New("it is not")
	})
}

// TestNodeShrinks takes away what pods use already: nothing else comes until they
// have gone.
func TestNodeShrinks(t *testing.T) {
	l := newFaulty(t, []*v1.Node{plainNode("node", "4")})
	l.run()
	for i := range 3 {
		l.api.put(plainPod(fmt.Sprintf("old-%d", i), "1"))
		l.awaitNode(fmt.Sprintf("old-%d", i))
	}
	l.api.put(plainNode("node", "2"))
	l.awaitAllocatable("node", 2000)
	l.api.put(plainPod("new", "1"))
	l.awaitRefusal("new")
	info := l.nodeInfo("node")
	if info.Requested.MilliCPU != 3000 || len(info.Pods) != 3 {
		t.Errorf("%d millicores of %d pods are requested", info.Requested.MilliCPU, len(info.Pods))
	}
	// Two are as many as it takes now.
	l.api.remove(l.api.pod("default/old-0"))
	l.eventually("the scheduler knows that a pod has gone", func() error {
		if pods, _ := l.sched.Cache.PodCount(); pods != 2 {
			return fmt.Errorf("%d pods", pods)
		}
		return nil
	})
	l.api.put(plainPod("newer", "1"))
	l.awaitRefusal("newer")
	l.awaitRefusal("new")
	l.api.remove(l.api.pod("default/old-1"))
	l.eventually("one of the new pods is bound", func() error {
		if l.api.pod("default/new").Spec.NodeName == "" && l.api.pod("default/newer").Spec.NodeName == "" {
			return errors.New("none is")
		}
		return nil
	})
	l.settled()
}

// nodeInfo is what the scheduler knows of a node, once it has carried out all that
// it heard; so it is for when it has just decided something.
func (l *live) nodeInfo(name string) *framework.NodeInfo {
	l.t.Helper()
	info, err := l.sched.Cache.GetNode(name)
	l.must(err)
	return info
}

// awaitAllocatable waits until the informers know a node as it is. Handlers may not
// have heard of it then, but do before what comes next.
func (l *live) awaitAllocatable(name string, milliCPU int64) {
	l.t.Helper()
	l.eventually("the change of the node is heard of", func() error {
		node, err := l.informers.Core().V1().Nodes().Lister().Get(name)
		if err != nil {
			return err
		}
		if have := node.Status.Allocatable.Cpu().MilliValue(); have != milliCPU {
			return fmt.Errorf("it has %d millicores", have)
		}
		return l.handled(node)
	})
}

// handled says whether the scheduler's cache has been told of a version of a node.
func (l *live) handled(node *v1.Node) error {
	cache := l.sched.Cache.(*Cache)
	cache.mu.Lock()
	for _, op := range cache.pending {
		if op.node != nil && op.node.ResourceVersion == node.ResourceVersion {
			cache.mu.Unlock()
			return nil
		}
	}
	cache.mu.Unlock()
	if info := l.ranker.cluster.copyOf(node.Name); info == nil || info.Node() == nil || info.Node().ResourceVersion != node.ResourceVersion {
		return errors.New("the cache does not have it")
	}
	return nil
}

// TestNodeComesBack deletes a node with pods on it, and creates another of that name:
// the pods are still there, and take what they took.
func TestNodeComesBack(t *testing.T) {
	l := newFaulty(t, []*v1.Node{plainNode("node", "2")})
	l.run()
	l.api.put(plainPod("old", "1"))
	l.awaitNode("old")
	l.api.remove(plainNode("node", "2"))
	l.eventually("the node has gone", func() error {
		if count := l.sched.Cache.NodeCount(); count != 0 {
			return fmt.Errorf("there are %d", count)
		}
		return nil
	})
	l.api.put(plainPod("first", "1"))
	l.awaitRefusal("first")
	again := plainNode("node", "2")
	again.UID = "another"
	l.api.put(again)
	l.awaitNode("first")
	l.api.put(plainPod("second", "1"))
	l.awaitRefusal("second")
	l.api.remove(l.api.pod("default/old"))
	l.awaitNode("second")
	l.settled()
}

// TestPodResized resizes the pod that was placed last, of which the scheduler still
// knows what it took when it was placed.
func TestPodResized(t *testing.T) {
	l := newScripted(t, newAPI())
	l.api.put(plainNode("node", "4"))
	pod := plainPod("pod", "1")
	l.api.put(pod)
	l.refresh()
	l.place(pod)
	bound := pod.DeepCopy()
	bound.Spec.NodeName = "node"
	l.api.put(bound)
	resized := bound.DeepCopy()
	resized.Spec.Containers[0].Resources.Requests = resources("3", "64Mi")
	l.api.put(resized)
	l.must(l.differs())
}

// place finds a node for a pod and takes it, as the cycle does.
func (l *live) place(pod *v1.Pod) {
	l.t.Helper()
	info, err := framework.NewPodInfo(pod)
	l.must(err)
	queued := &framework.QueuedPodInfo{PodInfo: info}
	result, err := l.sched.SchedulePod(l.ctx, l.sched.Profiles[v1.DefaultSchedulerName], framework.NewCycleState(), queued)
	l.must(err)
	assumed := pod.DeepCopy()
	assumed.Spec.NodeName = result.SuggestedHost
	l.must(l.sched.Cache.AssumePod(klog.Logger{}, assumed))
	l.refresh()
}

// TestDeletedWhileBound deletes a pod whose bind hangs. Its room is free at once, and
// whatever becomes of the bind does not matter.
func TestDeletedWhileBound(t *testing.T) {
	l := newFaulty(t, []*v1.Node{plainNode("node", "1")})
	begun, release := make(chan struct{}), make(chan struct{})
	l.api.binding = func(pod *v1.Pod, _ string) (bool, error) {
		if pod.Name == "deleted" {
			close(begun)
			<-release
		}
		return true, nil
	}
	l.run()
	l.api.put(plainPod("deleted", "1"))
	<-begun
	l.api.put(plainPod("next", "1"))
	l.awaitRefusal("next")
	l.api.remove(plainPod("deleted", "1"))
	l.awaitNode("next")
	close(release)
	l.settled()
	if l.api.binds["deleted"] != 0 || l.api.binds["next"] != 1 {
		t.Errorf("binds: %v", l.api.binds)
	}
}

// TestBindFails answers a bind with an error, before it took place and after.
func TestBindFails(t *testing.T) {
	for _, done := range []bool{false, true} {
		t.Run(fmt.Sprintf("done %v", done), func(t *testing.T) {
			l := newFaulty(t, []*v1.Node{plainNode("node", "1")})
			tries := 0
			l.api.binding = func(pod *v1.Pod, _ string) (bool, error) {
				if pod.Name != "pod" {
					return true, nil
				}
				if tries++; tries > 1 {
					return true, nil
				}
				return done, timeoutError()
			}
			l.run()
			l.api.put(plainPod("pod", "1"))
			l.awaitNode("pod")
			l.api.put(plainPod("next", "1"))
			l.awaitRefusal("next")
			l.api.remove(l.api.pod("default/pod"))
			l.awaitNode("next")
			l.settled()
			if l.api.binds["pod"] != 1 || l.api.binds["next"] != 1 {
				t.Errorf("binds: %v", l.api.binds)
			}
		})
	}
}

// settled ends the scheduler and waits until it knows what there is, and that only.
func (l *live) settled() {
	l.t.Helper()
	l.stop()
	l.eventually("the scheduler knows what there is", l.differs)
}

// TestInvariantsUnderFaults schedules while binds fail or seem to, pods are deleted
// and nodes come and go. No pod is lost or bound twice, and no node has more than it
// takes at any time.
func TestInvariantsUnderFaults(t *testing.T) {
	const nodes, pods = 50, 2000
	random := randomSeed(t)
	l := newFaulty(t, nil)
	for i := range nodes {
		l.api.put(plainNode(fmt.Sprintf("node-%d", i), "16"))
	}
	b := &badServer{live: l, random: rand.New(rand.NewPCG(random.Uint64(), 0)), tries: map[types.UID]int{}}
	l.api.binding = b.bind
	l.run()
	for i := range pods {
		l.api.put(plainPod(fmt.Sprintf("pod-%d", i), pick(&world{rand: random}, []string{"100m", "250m", "500m"})))
		if i%10 == 0 {
			l.api.remove(plainPod(fmt.Sprintf("pod-%d", random.IntN(i+1)), "1"))
		}
		if i%100 == 0 {
			b.replaceNode(fmt.Sprintf("node-%d", random.IntN(nodes)))
		}
	}
	l.eventually("all pods that are left are bound", func() error {
		for _, pod := range l.api.pods() {
			if pod.Spec.NodeName == "" {
				return fmt.Errorf("%s is not, of which is said %+v", pod.Name, pod.Status.Conditions)
			}
		}
		return nil
	})
	l.settled()
	for uid, binds := range l.api.binds {
		if binds != 1 {
			t.Errorf("%s was bound %d times", uid, binds)
		}
	}
	t.Logf("%d pods bound, with %d errors; %d of them are left", len(l.api.binds), b.failures, len(l.api.pods()))
	if b.failures < pods/20 {
		t.Errorf("only %d binds failed", b.failures)
	}
}

// badServer answers binds badly, and looks at each that takes place.
type badServer struct {
	*live
	mu       sync.Mutex
	random   *rand.Rand
	tries    map[types.UID]int
	failures int
}

func (b *badServer) bind(pod *v1.Pod, node string) (bool, error) {
	b.mu.Lock()
	b.tries[pod.UID]++
	luck := b.random.IntN(100)
	if luck < 20 {
		b.failures++
	}
	b.mu.Unlock()
	switch {
	case luck < 10:
		return false, timeoutError()
	case luck < 20:
		// The scheduler hears of it on the watch before it is told that it failed, as
		// when a server takes too long to answer. The other way round it cannot know.
		b.place(pod, node)
		b.awaitConfirmed(pod.UID)
		return false, timeoutError()
	}
	b.place(pod, node)
	return false, nil
}

// place binds a pod, if it is still there, and adds up its node.
func (b *badServer) place(pod *v1.Pod, node string) {
	b.api.mu.Lock()
	defer b.api.mu.Unlock()
	objects := b.api.kinds["pods"].objects
	now, _ := objects[keyOf(pod)].(*v1.Pod)
	if now == nil || now.UID != pod.UID {
		return
	}
	if now.Spec.NodeName != "" {
		b.t.Errorf("%s is on %s, and bound to %s", pod.UID, now.Spec.NodeName, node)
		return
	}
	bound := now.DeepCopy()
	bound.Spec.NodeName = node
	b.api.binds[pod.UID]++
	b.api.putLocked(bound)
	sum := int64(0)
	for _, object := range objects {
		if other := object.(*v1.Pod); other.Spec.NodeName == node {
			requests := resourcehelper.PodRequests(other, resourcehelper.PodResourcesOptions{})
			sum += requests.Cpu().MilliValue()
		}
	}
	if sum > 16_000 {
		b.t.Errorf("%s has pods for %d millicores", node, sum)
	}
}

// awaitConfirmed waits until the scheduler has heard that a pod is bound, or gone.
func (b *badServer) awaitConfirmed(uid types.UID) {
	cache := b.sched.Cache.(*Cache)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		cache.mu.Lock()
		assumed := cache.pods[uid].assumed
		cache.mu.Unlock()
		if !assumed {
			return
		}
	}
	b.t.Errorf("the scheduler does not hear of %s", uid)
}

// replaceNode deletes a node and the pods on it, and creates it anew.
func (b *badServer) replaceNode(name string) {
	b.api.remove(plainNode(name, "16"))
	for _, pod := range b.api.pods() {
		if pod.Spec.NodeName == name {
			b.api.remove(pod)
		}
	}
	b.api.put(plainNode(name, "16"))
}

// TestClockJumps moves the queue's clock by days while a pod is being bound: it keeps
// its room, and pods that wait are tried when there is some.
func TestClockJumps(t *testing.T) {
	start := time.Now()
	clock := testingclock.NewFakeClock(start)
	l := newFaulty(t, []*v1.Node{plainNode("node", "1")}, upstream.WithClock(clock))
	begun, release := make(chan struct{}), make(chan struct{})
	l.api.binding = func(pod *v1.Pod, _ string) (bool, error) {
		if pod.Name == "held" {
			close(begun)
			<-release
		}
		return true, nil
	}
	l.run()
	l.api.put(plainPod("held", "1"))
	<-begun
	for i, jump := range []time.Duration{48 * time.Hour, -48 * time.Hour, 0} {
		clock.SetTime(start.Add(jump))
		l.api.put(plainPod(fmt.Sprintf("next-%d", i), "1"))
		l.awaitRefusal(fmt.Sprintf("next-%d", i))
	}
	close(release)
	l.awaitNode("held")
	l.api.remove(plainPod("held", "1"))
	l.eventually("one of those that wait is bound", func() error {
		for i := range 3 {
			if l.api.pod(fmt.Sprintf("default/next-%d", i)).Spec.NodeName != "" {
				return nil
			}
		}
		return errors.New("none is")
	})
	l.settled()
	if len(l.api.binds) != 2 || l.api.binds["held"] != 1 {
		t.Errorf("binds: %v", l.api.binds)
	}
}
