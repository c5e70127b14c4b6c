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
)

// TestNodeShrinks reduces a node below what its pods use: no pod is placed there until they are
// deleted.
func TestNodeShrinks(t *testing.T) {
	l := schedtest.NewFaulty(t, []*v1.Node{schedtest.PlainNode("node", "4")})
	l.Run()
	for i := range 3 {
		l.API.Put(schedtest.PlainPod(fmt.Sprintf("old-%d", i), "1"))
		l.AwaitNode(fmt.Sprintf("old-%d", i))
	}
	l.API.Put(schedtest.PlainNode("node", "2"))
	l.AwaitAllocatable("node", 2000)
	l.API.Put(schedtest.PlainPod("new", "1"))
	l.AwaitRefusal("new")
	info := l.NodeInfo("node")
	if info.Requested.MilliCPU != 3000 || len(info.Pods) != 3 {
		t.Errorf("%d millicores of %d pods are requested", info.Requested.MilliCPU, len(info.Pods))
	}
	// Two are as many as it takes now.
	l.API.Remove(l.API.Pod("default/old-0"))
	l.Eventually("the scheduler knows that a pod has gone", func() error {
		if pods, _ := l.Sched.Cache.PodCount(); pods != 2 {
			return fmt.Errorf("%d pods", pods)
		}
		return nil
	})
	l.API.Put(schedtest.PlainPod("newer", "1"))
	l.AwaitRefusal("newer")
	l.AwaitRefusal("new")
	l.API.Remove(l.API.Pod("default/old-1"))
	l.Eventually("one of the new pods is bound", func() error {
		if l.API.Pod("default/new").Spec.NodeName == "" && l.API.Pod("default/newer").Spec.NodeName == "" {
			return errors.New("none is")
		}
		return nil
	})
	l.Settled()
}

// TestNodeComesBack deletes a node with pods and creates another of its name: the pods still use
// capacity.
func TestNodeComesBack(t *testing.T) {
	l := schedtest.NewFaulty(t, []*v1.Node{schedtest.PlainNode("node", "2")})
	l.Run()
	l.API.Put(schedtest.PlainPod("old", "1"))
	l.AwaitNode("old")
	l.API.Remove(schedtest.PlainNode("node", "2"))
	l.Eventually("the node has gone", func() error {
		if count := l.Sched.Cache.NodeCount(); count != 0 {
			return fmt.Errorf("there are %d", count)
		}
		return nil
	})
	l.API.Put(schedtest.PlainPod("first", "1"))
	l.AwaitRefusal("first")
	again := schedtest.PlainNode("node", "2")
	again.UID = "another"
	l.API.Put(again)
	l.AwaitNode("first")
	l.API.Put(schedtest.PlainPod("second", "1"))
	l.AwaitRefusal("second")
	l.API.Remove(l.API.Pod("default/old"))
	l.AwaitNode("second")
	l.Settled()
}

// TestPodResized resizes the pod that was placed last, whose computed requests are still
// remembered.
func TestPodResized(t *testing.T) {
	l := schedtest.NewScripted(t, schedtest.NewAPI())
	l.API.Put(schedtest.PlainNode("node", "4"))
	pod := schedtest.PlainPod("pod", "1")
	l.API.Put(pod)
	l.Refresh()
	l.Place(pod)
	bound := pod.DeepCopy()
	bound.Spec.NodeName = "node"
	l.API.Put(bound)
	resized := bound.DeepCopy()
	resized.Spec.Containers[0].Resources.Requests = schedtest.Resources("3", "64Mi")
	l.API.Put(resized)
	l.Must(l.Differs())
}

// TestDeletedWhileBound deletes a pod whose bind hangs: its capacity is free at once, whatever
// becomes of the bind.
func TestDeletedWhileBound(t *testing.T) {
	l := schedtest.NewFaulty(t, []*v1.Node{schedtest.PlainNode("node", "1")})
	begun, release := make(chan struct{}), make(chan struct{})
	l.API.Binding = func(pod *v1.Pod, _ string) (bool, error) {
		if pod.Name == "deleted" {
			close(begun)
			<-release
		}
		return true, nil
	}
	l.Run()
	l.API.Put(schedtest.PlainPod("deleted", "1"))
	<-begun
	l.API.Put(schedtest.PlainPod("next", "1"))
	l.AwaitRefusal("next")
	l.API.Remove(schedtest.PlainPod("deleted", "1"))
	l.AwaitNode("next")
	close(release)
	l.Settled()
	if l.API.Binds["deleted"] != 0 || l.API.Binds["next"] != 1 {
		t.Errorf("binds: %v", l.API.Binds)
	}
}

// TestBindFails answers a bind with an error, before it took place and after.
func TestBindFails(t *testing.T) {
	for _, done := range []bool{false, true} {
		t.Run(fmt.Sprintf("done %v", done), func(t *testing.T) {
			l := schedtest.NewFaulty(t, []*v1.Node{schedtest.PlainNode("node", "1")})
			tries := 0
			l.API.Binding = func(pod *v1.Pod, _ string) (bool, error) {
				if pod.Name != "pod" {
					return true, nil
				}
				if tries++; tries > 1 {
					return true, nil
				}
				return done, schedtest.TimeoutError()
			}
			l.Run()
			l.API.Put(schedtest.PlainPod("pod", "1"))
			l.AwaitNode("pod")
			l.API.Put(schedtest.PlainPod("next", "1"))
			l.AwaitRefusal("next")
			l.API.Remove(l.API.Pod("default/pod"))
			l.AwaitNode("next")
			l.Settled()
			if l.API.Binds["pod"] != 1 || l.API.Binds["next"] != 1 {
				t.Errorf("binds: %v", l.API.Binds)
			}
		})
	}
}

// TestInvariantsUnderFaults schedules while binds fail or seem to, pods are deleted and nodes come
// and go. No pod is lost or bound twice, and no node is overcommitted at any time.
func TestInvariantsUnderFaults(t *testing.T) {
	const nodes, pods = 50, 2000
	random := schedtest.RandomSeed(t)
	l := schedtest.NewFaulty(t, nil)
	for i := range nodes {
		l.API.Put(schedtest.PlainNode(fmt.Sprintf("node-%d", i), "16"))
	}
	b := &badServer{Live: l, random: rand.New(rand.NewPCG(random.Uint64(), 0)), tries: map[types.UID]int{}}
	l.API.Binding = b.bind
	l.Run()
	for i := range pods {
		l.API.Put(schedtest.PlainPod(fmt.Sprintf("pod-%d", i), pick(&world{rand: random}, []string{"100m", "250m", "500m"})))
		if i%10 == 0 {
			l.API.Remove(schedtest.PlainPod(fmt.Sprintf("pod-%d", random.IntN(i+1)), "1"))
		}
		if i%100 == 0 {
			b.replaceNode(fmt.Sprintf("node-%d", random.IntN(nodes)))
		}
	}
	l.Eventually("all pods that are left are bound", func() error {
		for _, pod := range l.API.Pods() {
			if pod.Spec.NodeName == "" {
				return fmt.Errorf("%s is not, of which is said %+v", pod.Name, pod.Status.Conditions)
			}
		}
		return nil
	})
	l.Settled()
	for uid, binds := range l.API.Binds {
		if binds != 1 {
			t.Errorf("%s was bound %d times", uid, binds)
		}
	}
	t.Logf("%d pods bound, with %d errors; %d of them are left", len(l.API.Binds), b.failures, len(l.API.Pods()))
	if b.failures < pods/20 {
		t.Errorf("only %d binds failed", b.failures)
	}
}

// badServer answers binds with errors and checks each bind that takes place.
type badServer struct {
	*schedtest.Live
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
		return false, schedtest.TimeoutError()
	case luck < 20:
		// The watch shows the bind before the call fails, as with a server that answers too
		// late. If the failure came first, the scheduler could not know that the pod is bound.
		b.place(pod, node)
		b.awaitConfirmed(pod.UID)
		return false, schedtest.TimeoutError()
	}
	b.place(pod, node)
	return false, nil
}

// place binds a pod, if it is still there, and adds up its node.
func (b *badServer) place(pod *v1.Pod, node string) {
	b.API.Mu.Lock()
	defer b.API.Mu.Unlock()
	objects := b.API.Kinds["pods"].Objects
	now, _ := objects[schedtest.KeyOf(pod)].(*v1.Pod)
	if now == nil || now.UID != pod.UID {
		return
	}
	if now.Spec.NodeName != "" {
		b.T.Errorf("%s is on %s, and bound to %s", pod.UID, now.Spec.NodeName, node)
		return
	}
	bound := now.DeepCopy()
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
		b.T.Errorf("%s has pods for %d millicores", node, sum)
	}
}

// awaitConfirmed waits until the scheduler has heard that a pod is bound, or gone.
func (b *badServer) awaitConfirmed(uid types.UID) {
	cache := b.Sched.Cache.(*cache.Cache)
	for deadline := time.Now().Add(schedtest.Patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if assumed := cache.States()[uid].Assumed; !assumed {
			return
		}
	}
	b.T.Errorf("the scheduler does not hear of %s", uid)
}

// replaceNode deletes a node and the pods on it, and creates it again.
func (b *badServer) replaceNode(name string) {
	b.API.Remove(schedtest.PlainNode(name, "16"))
	for _, pod := range b.API.Pods() {
		if pod.Spec.NodeName == name {
			b.API.Remove(pod)
		}
	}
	b.API.Put(schedtest.PlainNode(name, "16"))
}

// TestClockJumps moves the queue's clock by days during a bind: the pod keeps its capacity, and
// pending pods are tried when capacity is free.
func TestClockJumps(t *testing.T) {
	start := time.Now()
	clock := testingclock.NewFakeClock(start)
	l := schedtest.NewFaulty(t, []*v1.Node{schedtest.PlainNode("node", "1")}, kubescheduler.WithClock(clock))
	begun, release := make(chan struct{}), make(chan struct{})
	l.API.Binding = func(pod *v1.Pod, _ string) (bool, error) {
		if pod.Name == "held" {
			close(begun)
			<-release
		}
		return true, nil
	}
	l.Run()
	l.API.Put(schedtest.PlainPod("held", "1"))
	<-begun
	for i, jump := range []time.Duration{48 * time.Hour, -48 * time.Hour, 0} {
		clock.SetTime(start.Add(jump))
		l.API.Put(schedtest.PlainPod(fmt.Sprintf("next-%d", i), "1"))
		l.AwaitRefusal(fmt.Sprintf("next-%d", i))
	}
	close(release)
	l.AwaitNode("held")
	l.API.Remove(schedtest.PlainPod("held", "1"))
	l.Eventually("one of those that wait is bound", func() error {
		for i := range 3 {
			if l.API.Pod(fmt.Sprintf("default/next-%d", i)).Spec.NodeName != "" {
				return nil
			}
		}
		return errors.New("none is")
	})
	l.Settled()
	if len(l.API.Binds) != 2 || l.API.Binds["held"] != 1 {
		t.Errorf("binds: %v", l.API.Binds)
	}
}
