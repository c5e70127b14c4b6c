package attach_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest/generate"
)

// TestShrunkNodeTakesNoPods reduces a node's allocatable CPU below the requests of its pods: no pod
// is bound to it until the requests fit again.
func TestShrunkNodeTakesNoPods(t *testing.T) {
	f := schedtest.New(t, []*v1.Node{schedtest.PlainNode("node", "4")})
	f.Run()
	for i := range 3 {
		f.API.Put(schedtest.PlainPod(fmt.Sprintf("old-%d", i), "1"))
		f.AwaitBound(fmt.Sprintf("old-%d", i))
	}
	f.API.Put(schedtest.PlainNode("node", "2"))
	f.AwaitAllocatable("node", 2000)
	f.API.Put(schedtest.PlainPod("new", "1"))
	f.AwaitUnschedulable("new")
	info := f.NodeInfo("node")
	if info.Requested.MilliCPU != 3000 || len(info.Pods) != 3 {
		t.Errorf("node has %d pods that request %d millicores, want 3 pods and 3000 millicores", len(info.Pods), info.Requested.MilliCPU)
	}
	// The two remaining pods still use all of the node's CPU.
	f.API.Remove(f.API.Pod("default/old-0"))
	f.Eventually("the cache has two pods", func() error {
		if pods, _ := f.Sched.Cache.PodCount(); pods != 2 {
			return fmt.Errorf("Cache.PodCount() = %d", pods)
		}
		return nil
	})
	f.API.Put(schedtest.PlainPod("newer", "1"))
	f.AwaitUnschedulable("newer")
	f.AwaitUnschedulable("new")
	f.API.Remove(f.API.Pod("default/old-1"))
	f.Eventually("one of the new pods is bound", func() error {
		if f.API.Pod("default/new").Spec.NodeName == "" && f.API.Pod("default/newer").Spec.NodeName == "" {
			return errors.New("neither is bound")
		}
		return nil
	})
	f.StopAndCheck()
}

// TestRecreatedNodeKeepsItsPods deletes a node with a pod and creates another with its name: the
// pod still uses capacity.
func TestRecreatedNodeKeepsItsPods(t *testing.T) {
	f := schedtest.New(t, []*v1.Node{schedtest.PlainNode("node", "2")})
	f.Run()
	f.API.Put(schedtest.PlainPod("old", "1"))
	f.AwaitBound("old")
	f.API.Remove(schedtest.PlainNode("node", "2"))
	f.Eventually("the cache has no nodes", func() error {
		if count := f.Sched.Cache.NodeCount(); count != 0 {
			return fmt.Errorf("Cache.NodeCount() = %d", count)
		}
		return nil
	})
	f.API.Put(schedtest.PlainPod("first", "1"))
	f.AwaitUnschedulable("first")
	recreated := schedtest.PlainNode("node", "2")
	recreated.UID = "recreated"
	f.API.Put(recreated)
	f.AwaitBound("first")
	f.API.Put(schedtest.PlainPod("second", "1"))
	f.AwaitUnschedulable("second")
	f.API.Remove(f.API.Pod("default/old"))
	f.AwaitBound("second")
	f.StopAndCheck()
}

// TestResizeAfterAssumeIsCounted resizes the pod that was assumed last: the cache must not use the
// requests that it computed when it ranked the pod.
func TestResizeAfterAssumeIsCounted(t *testing.T) {
	f := schedtest.NewScripted(t, schedtest.NewAPI())
	f.API.Put(schedtest.PlainNode("node", "4"))
	pod := schedtest.PlainPod("pod", "1")
	f.API.Put(pod)
	f.Refresh()
	f.ScheduleAndAssume(pod)
	bound := pod.DeepCopy()
	bound.Spec.NodeName = "node"
	f.API.Put(bound)
	resized := bound.DeepCopy()
	resized.Spec.Containers[0].Resources.Requests = schedtest.Resources("3", "64Mi")
	f.API.Put(resized)
	f.Must(f.CheckState())
}

// TestDeletingPodDuringBindFreesItsCapacity deletes a pod whose bind hangs: its capacity is free
// before the bind ends.
func TestDeletingPodDuringBindFreesItsCapacity(t *testing.T) {
	f := schedtest.New(t, []*v1.Node{schedtest.PlainNode("node", "1")})
	bindStarted, release := make(chan struct{}), make(chan struct{})
	f.API.OnBind = func(pod *v1.Pod, _ string) (bool, error) {
		if pod.Name == "deleted" {
			close(bindStarted)
			<-release
		}
		return true, nil
	}
	f.Run()
	f.API.Put(schedtest.PlainPod("deleted", "1"))
	<-bindStarted
	f.API.Put(schedtest.PlainPod("next", "1"))
	f.AwaitUnschedulable("next")
	f.API.Remove(schedtest.PlainPod("deleted", "1"))
	f.AwaitBound("next")
	close(release)
	f.StopAndCheck()
	if f.API.Binds["deleted"] != 0 || f.API.Binds["next"] != 1 {
		t.Errorf("binds = %v, want 0 of pod deleted and 1 of pod next", f.API.Binds)
	}
}

// TestPodIsBoundOnceDespiteBindError answers the first bind of a pod with an error, without
// executing it and after executing it. Either way the pod is bound once and its capacity is counted
// once.
func TestPodIsBoundOnceDespiteBindError(t *testing.T) {
	for _, executed := range []bool{false, true} {
		t.Run(fmt.Sprintf("first bind executed: %v", executed), func(t *testing.T) {
			f := schedtest.New(t, []*v1.Node{schedtest.PlainNode("node", "1")})
			attempts := 0
			f.API.OnBind = func(pod *v1.Pod, _ string) (bool, error) {
				if pod.Name != "pod" {
					return true, nil
				}
				if attempts++; attempts > 1 {
					return true, nil
				}
				return executed, schedtest.TimeoutError()
			}
			f.Run()
			f.API.Put(schedtest.PlainPod("pod", "1"))
			f.AwaitBound("pod")
			f.API.Put(schedtest.PlainPod("next", "1"))
			f.AwaitUnschedulable("next")
			f.API.Remove(f.API.Pod("default/pod"))
			f.AwaitBound("next")
			f.StopAndCheck()
			if f.API.Binds["pod"] != 1 || f.API.Binds["next"] != 1 {
				t.Errorf("binds = %v, want 1 of each pod", f.API.Binds)
			}
		})
	}
}

// TestInvariantsUnderFaults schedules while binds are answered with errors, and while pods and
// nodes are deleted and created. No pod is lost or bound twice, and no node is overcommitted at any
// time.
func TestInvariantsUnderFaults(t *testing.T) {
	const nodes, pods = 50, 2000
	random := schedtest.NewRandom(t)
	f := schedtest.New(t, nil)
	for i := range nodes {
		f.API.Put(schedtest.PlainNode(fmt.Sprintf("node-%d", i), "16"))
	}
	b := &faultyBinder{Fixture: f, random: rand.New(rand.NewPCG(random.Uint64(), 0))}
	f.API.OnBind = b.bind
	f.Run()
	for i := range pods {
		f.API.Put(schedtest.PlainPod(fmt.Sprintf("pod-%d", i), generate.Pick(random, []string{"100m", "250m", "500m"})))
		if i%10 == 0 {
			f.API.Remove(schedtest.PlainPod(fmt.Sprintf("pod-%d", random.IntN(i+1)), "1"))
		}
		if i%100 == 0 {
			b.replaceNode(fmt.Sprintf("node-%d", random.IntN(nodes)))
		}
	}
	f.Eventually("all remaining pods are bound", func() error {
		for _, pod := range f.API.Pods() {
			if pod.Spec.NodeName == "" {
				return fmt.Errorf("%s is not bound, conditions %+v", pod.Name, pod.Status.Conditions)
			}
		}
		return nil
	})
	f.StopAndCheck()
	for uid, binds := range f.API.Binds {
		if binds != 1 {
			t.Errorf("pod %s was bound %d times, want 1", uid, binds)
		}
	}
	t.Logf("%d pods bound, %d binds answered with errors, %d pods remain", len(f.API.Binds), b.failures, len(f.API.Pods()))
	if b.failures < pods/20 {
		t.Errorf("%d binds were answered with errors, want at least %d", b.failures, pods/20)
	}
}

// faultyBinder answers a fifth of all binds with errors and checks each bind that it executes.
type faultyBinder struct {
	*schedtest.Fixture
	mu       sync.Mutex
	random   *rand.Rand
	failures int
}

// bind is an [schedtest.API.OnBind]. It executes binds itself, so it returns false.
func (b *faultyBinder) bind(pod *v1.Pod, node string) (bool, error) {
	b.mu.Lock()
	percent := b.random.IntN(100)
	if percent < 20 {
		b.failures++
	}
	b.mu.Unlock()
	switch {
	case percent < 10:
		return false, schedtest.TimeoutError()
	case percent < 20:
		// The watch shows the bind before the call fails, as with a server that answers too
		// late. If the failure came first, the scheduler could not know that the pod is bound.
		b.execute(pod, node)
		b.awaitConfirmed(pod.UID)
		return false, schedtest.TimeoutError()
	}
	b.execute(pod, node)
	return false, nil
}

// execute binds a pod, if it still exists, and checks that its node is not overcommitted.
func (b *faultyBinder) execute(pod *v1.Pod, node string) {
	b.API.Mu.Lock()
	defer b.API.Mu.Unlock()
	objects := b.API.Resources["pods"].Objects
	current, _ := objects[schedtest.KeyOf(pod)].(*v1.Pod)
	if current == nil || current.UID != pod.UID {
		return
	}
	if current.Spec.NodeName != "" {
		b.T.Errorf("pod %s is bound to %s again, it is on %s already", pod.UID, node, current.Spec.NodeName)
		return
	}
	bound := current.DeepCopy()
	bound.Spec.NodeName = node
	b.API.Binds[pod.UID]++
	b.API.PutLocked(bound)
	sum := int64(0)
	for _, object := range objects {
		if other := object.(*v1.Pod); other.Spec.NodeName == node {
			requests := resourcehelper.PodRequests(other, resourcehelper.PodResourcesOptions{})
			sum += requests.Cpu().MilliValue()
		}
	}
	if sum > 16_000 {
		b.T.Errorf("the pods on %s request %d millicores, want at most 16000", node, sum)
	}
}

// awaitConfirmed waits until the cache has a pod as bound, or no longer has it.
func (b *faultyBinder) awaitConfirmed(uid types.UID) {
	cache := b.Sched.Cache.(*cache.Cache)
	for deadline := time.Now().Add(schedtest.Patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if assumed := cache.States()[uid].Assumed; !assumed {
			return
		}
	}
	b.T.Errorf("pod %s is still assumed after %v, want it confirmed", uid, schedtest.Patience)
}

// replaceNode deletes a node and the pods on it, and creates the node again.
func (b *faultyBinder) replaceNode(name string) {
	b.API.Remove(schedtest.PlainNode(name, "16"))
	for _, pod := range b.API.Pods() {
		if pod.Spec.NodeName == name {
			b.API.Remove(pod)
		}
	}
	b.API.Put(schedtest.PlainNode(name, "16"))
}

// TestClockJumpDuringBindKeepsCapacity moves the queue's clock by days during a bind: the pod keeps
// its capacity, and pending pods are scheduled when capacity is free.
func TestClockJumpDuringBindKeepsCapacity(t *testing.T) {
	start := time.Now()
	clock := testingclock.NewFakeClock(start)
	f := schedtest.New(t, []*v1.Node{schedtest.PlainNode("node", "1")}, kubescheduler.WithClock(clock))
	bindStarted, release := make(chan struct{}), make(chan struct{})
	f.API.OnBind = func(pod *v1.Pod, _ string) (bool, error) {
		if pod.Name == "first" {
			close(bindStarted)
			<-release
		}
		return true, nil
	}
	f.Run()
	f.API.Put(schedtest.PlainPod("first", "1"))
	<-bindStarted
	for i, jump := range []time.Duration{48 * time.Hour, -48 * time.Hour, 0} {
		clock.SetTime(start.Add(jump))
		f.API.Put(schedtest.PlainPod(fmt.Sprintf("next-%d", i), "1"))
		f.AwaitUnschedulable(fmt.Sprintf("next-%d", i))
	}
	close(release)
	f.AwaitBound("first")
	f.API.Remove(schedtest.PlainPod("first", "1"))
	f.Eventually("one of the pending pods is bound", func() error {
		for i := range 3 {
			if f.API.Pod(fmt.Sprintf("default/next-%d", i)).Spec.NodeName != "" {
				return nil
			}
		}
		return errors.New("none is bound")
	})
	f.StopAndCheck()
	if len(f.API.Binds) != 2 || f.API.Binds["first"] != 1 {
		t.Errorf("binds = %v, want 1 of pod first and 1 of another pod", f.API.Binds)
	}
}
