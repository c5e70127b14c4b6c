package intake

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// fixture is a scheduler with an intake. The test sets the intake's clock.
type fixture struct {
	*schedtest.Fixture
	in    *Intake
	clock *testingclock.FakeClock
}

func newFixture(t *testing.T, nodes ...*v1.Node) *fixture {
	t.Helper()
	base := schedtest.New(t, nodes)
	f := &fixture{Fixture: base, clock: testingclock.NewFakeClock(time.Now())}
	f.in = Attach(base.Sched, []config.KubeSchedulerProfile{*schedtest.DefaultProfile(t)}, base.Informers, fake.NewClientset())
	f.in.clock = f.clock
	f.in.getPod = func(_ context.Context, namespace, name string) (*v1.Pod, error) {
		if pod := base.API.Pod(namespace + "/" + name); pod != nil {
			return pod.DeepCopy(), nil
		}
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
	}
	base.Run()
	return f
}

// awaitPodCount waits until this many pods are assumed or bound.
func (f *fixture) awaitPodCount(want int) {
	f.T.Helper()
	f.Eventually(fmt.Sprintf("%d pods are assumed or bound", want), func() error {
		if got, _ := f.Sched.Cache.PodCount(); got != want {
			return fmt.Errorf("Cache.PodCount() = %d", got)
		}
		return nil
	})
}

// awaitWaitingBind waits until the bind of an early pod waits for the pod to be stored. Only then
// does the intake ask the API server for the pod when the test moves the clock.
func (f *fixture) awaitWaitingBind(pod *v1.Pod) {
	f.T.Helper()
	f.Eventually("the bind waits for the pod to be stored", func() error {
		f.in.mu.Lock()
		defer f.in.mu.Unlock()
		early := f.in.early[pod.UID]
		if early == nil {
			return errors.New("the pod is not an early pod")
		}
		if !early.binding {
			return errors.New("no bind waits")
		}
		return nil
	})
}

// stopAndCheck waits until no early pod is remembered and no pod is in flight. Then it stops the
// scheduler and checks its cache and its queue.
func (f *fixture) stopAndCheck() {
	f.T.Helper()
	f.Eventually("no early pod is remembered", func() error {
		f.in.mu.Lock()
		early, names := len(f.in.early), len(f.in.names)
		f.in.mu.Unlock()
		if inFlight := len(f.Sched.SchedulingQueue.InFlightPods()); early+names+inFlight > 0 {
			return fmt.Errorf("%d early pods, %d names, %d pods in flight", early, names, inFlight)
		}
		return nil
	})
	f.StopAndCheck()
}

func droppedCounter(reason string) func() (float64, error) {
	return func() (float64, error) { return testutil.GetCounterMetricValue(dropped.WithLabelValues(reason)) }
}

func takenCounter(source string) func() (float64, error) {
	return func() (float64, error) { return testutil.GetCounterMetricValue(taken.WithLabelValues(source)) }
}

func expiredCounter(reason string) func() (float64, error) {
	return func() (float64, error) { return testutil.GetCounterMetricValue(expired.WithLabelValues(reason)) }
}

// TestEarlyPodIsBoundAfterItIsStored delivers a pod by the webhook before it is stored: it is
// assumed immediately and bound after it is stored.
func TestEarlyPodIsBoundAfterItIsStored(t *testing.T) {
	f := newFixture(t, schedtest.PlainNode("node", "4"))
	byWebhook, byWatch := schedtest.CounterDelta(t, takenCounter(sourceWebhook)), schedtest.CounterDelta(t, takenCounter(sourceWatch))
	pod := schedtest.PlainPod("pod", "1")
	f.in.Take(pod.DeepCopy())
	f.awaitPodCount(1)
	time.Sleep(50 * time.Millisecond)
	if f.API.Binds[pod.UID] != 0 || f.API.Pod("default/pod") != nil {
		t.Fatal("the pod was bound before it was stored")
	}
	f.API.Put(pod)
	f.AwaitBoundOnce(pod)
	f.stopAndCheck()
	if byWebhook() != 1 || byWatch() != 0 {
		t.Errorf("%d pods taken from the webhook and %d from the watch, want 1 and 0", byWebhook(), byWatch())
	}
}

// TestPodKnownByWatchIsDropped delivers a pod by the webhook after the watch.
func TestPodKnownByWatchIsDropped(t *testing.T) {
	f := newFixture(t, schedtest.PlainNode("node", "4"))
	droppedKnown := schedtest.CounterDelta(t, droppedCounter(dropExists))
	pod := schedtest.PlainPod("pod", "1")
	f.API.Put(pod.DeepCopy())
	f.AwaitBound("pod")
	f.in.Take(pod.DeepCopy())
	f.AwaitBoundOnce(pod)
	f.stopAndCheck()
	if droppedKnown() != 1 {
		t.Errorf("%d pods dropped as known, want 1", droppedKnown())
	}
}

func TestPodDeliveredTwiceIsBoundOnce(t *testing.T) {
	f := newFixture(t, schedtest.PlainNode("node", "4"))
	pod := schedtest.PlainPod("pod", "1")
	f.in.Take(pod.DeepCopy())
	f.in.Take(pod.DeepCopy())
	f.API.Put(pod)
	f.AwaitBoundOnce(pod)
	f.stopAndCheck()
}

// TestCapacityOfPodThatIsNeverStoredIsFreed delivers a pod that fills the node and is never stored.
// When the API server has twice not found it, the next pod gets the capacity, and further pods of
// the namespace are left to the watch.
func TestCapacityOfPodThatIsNeverStoredIsFreed(t *testing.T) {
	f := newFixture(t, schedtest.PlainNode("node", "4"))
	expiredPods, droppedByNamespace := schedtest.CounterDelta(t, expiredCounter(expiredAbsent)), schedtest.CounterDelta(t, droppedCounter(dropNamespace))
	refused := schedtest.PlainPod("refused", "4")
	f.in.Take(refused.DeepCopy())
	f.awaitWaitingBind(refused)
	next := schedtest.PlainPod("next", "4")
	f.API.Put(next)
	f.AwaitUnschedulable("next")
	f.clock.Step(firstGetAfter + SweepInterval)
	f.Eventually("the API server was asked for the pod once", func() error {
		f.in.mu.Lock()
		defer f.in.mu.Unlock()
		if early := f.in.early[refused.UID]; early == nil || early.notFound != 1 {
			return fmt.Errorf("early pod %+v", early)
		}
		return nil
	})
	if expiredPods() != 0 || f.API.Pod("default/next").Spec.NodeName != "" {
		t.Fatal("the pod expired after the first request to the API server, want it to expire after the second")
	}
	f.clock.Step(secondGetAfter)
	f.AwaitBoundOnce(next)
	f.in.Take(schedtest.PlainPod("another", "1"))
	f.stopAndCheck()
	if expiredPods() != 1 || droppedByNamespace() != 1 {
		t.Errorf("%d pods expired and %d were dropped because of their namespace, want 1 and 1", expiredPods(), droppedByNamespace())
	}
}

// TestEarlyPodExpiresIfAPIServerDoesNotAnswer has requests for a pod fail. The pod expires, and is
// scheduled again when the watch shows it.
func TestEarlyPodExpiresIfAPIServerDoesNotAnswer(t *testing.T) {
	f := newFixture(t, schedtest.PlainNode("node", "4"))
	expiredPods := schedtest.CounterDelta(t, expiredCounter(expiredTimeout))
	f.in.getPod = func(context.Context, string, string) (*v1.Pod, error) { return nil, errors.New("no answer") }
	pod := schedtest.PlainPod("pod", "4")
	f.in.Take(pod.DeepCopy())
	f.awaitPodCount(1)
	f.clock.Step(EarlyExpiry + SweepInterval)
	f.awaitPodCount(0)
	f.API.Put(pod)
	f.AwaitBoundOnce(pod)
	f.stopAndCheck()
	if expiredPods() != 1 {
		t.Errorf("%d pods expired, want 1", expiredPods())
	}
}

// TestGatedEarlyPodExpiresInQueue delivers a pod that is never stored and that a scheduling gate
// keeps in the queue until it expires.
func TestGatedEarlyPodExpiresInQueue(t *testing.T) {
	f := newFixture(t)
	pod := schedtest.PlainPod("pod", "1")
	pod.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "closed"}}
	f.in.Take(pod)
	f.clock.Step(EarlyExpiry + SweepInterval)
	f.Eventually("the queue is empty", func() error {
		if pending, summary := f.Sched.SchedulingQueue.PendingPods(); len(pending) != 0 {
			return errors.New(summary)
		}
		return nil
	})
	f.clock.Step(fateKeptFor + SweepInterval)
	f.stopAndCheck()
}

// TestStoredPodIsBoundBeforeTheWatchShowsIt stores an early pod while the watch sends no events:
// the pod is bound because the API server confirms that it is stored.
func TestStoredPodIsBoundBeforeTheWatchShowsIt(t *testing.T) {
	f := newFixture(t, schedtest.PlainNode("node", "4"))
	pod := schedtest.PlainPod("pod", "1")
	f.API.WithoutEvents(func() {
		f.in.Take(pod.DeepCopy())
		f.awaitWaitingBind(pod)
		f.API.Put(pod)
		f.clock.Step(firstGetAfter + SweepInterval)
		f.AwaitBoundOnce(pod)
	})
	f.Eventually("the watch has shown the bound pod", func() error {
		if assumed, _ := f.Sched.Cache.IsAssumedPod(pod); assumed {
			return errors.New("the pod is still assumed")
		}
		return nil
	})
	// The early pod is still remembered, because the watch never showed the pod without a node.
	f.clock.Step(fateKeptFor + SweepInterval)
	f.stopAndCheck()
}

// TestStoredPodReplacesDifferentEarlyPod stores a pod with larger requests than were delivered, so
// that it does not fit on the node on which the early pod was assumed.
func TestStoredPodReplacesDifferentEarlyPod(t *testing.T) {
	f := newFixture(t, schedtest.PlainNode("small", "2"))
	pod := schedtest.PlainPod("pod", "1")
	f.in.Take(pod.DeepCopy())
	f.awaitPodCount(1)
	f.API.Put(schedtest.PlainNode("large", "4"))
	stored := schedtest.PlainPod("pod", "3")
	f.API.Put(stored)
	f.AwaitBoundOnce(stored)
	f.clock.Step(fateKeptFor + SweepInterval)
	f.stopAndCheck()
	if info := f.NodeInfo("large"); info.Requested.MilliCPU != 3000 {
		t.Errorf("the pods on node large request %d millicores, want 3000", info.Requested.MilliCPU)
	}
}

// TestBindingCycleWaitsUntilPodIsStored calls the first steps of a binding cycle for a pod that is
// never stored. They wait, and fail when the pod expires, so that no later plugin is called.
func TestBindingCycleWaitsUntilPodIsStored(t *testing.T) {
	f := newFixture(t, schedtest.PlainNode("node", "4"))
	pod := schedtest.PlainPod("pod", "1")
	f.in.Take(pod)
	fw, statuses := f.Sched.Profiles[v1.DefaultSchedulerName], make(chan *fwk.Status, 2)
	go func() { statuses <- fw.RunPreBindPreFlights(f.Ctx, framework.NewCycleState(), pod, "node") }()
	go func() { statuses <- fw.WaitOnPermit(f.Ctx, pod) }()
	f.awaitPodCount(1)
	time.Sleep(20 * time.Millisecond)
	if len(statuses) != 0 {
		t.Fatal("a step returned before the pod was stored")
	}
	f.clock.Step(EarlyExpiry + SweepInterval)
	for range 2 {
		if status := <-statuses; !errors.Is(status.AsError(), errNotStored) {
			t.Errorf("a step returned %v after the pod expired, want %v", status, errNotStored)
		}
	}
	f.stopAndCheck()
}

// TestSecondPodOfSameNameIsBound delivers two pods with one name. Only the second is stored, and it
// is bound.
func TestSecondPodOfSameNameIsBound(t *testing.T) {
	f := newFixture(t, schedtest.PlainNode("node", "4"))
	refused, pod := schedtest.PlainPod("pod", "4"), schedtest.PlainPod("pod", "2")
	refused.UID = "refused"
	f.in.Take(refused)
	f.awaitPodCount(1)
	f.in.Take(pod.DeepCopy())
	f.API.Put(pod)
	f.AwaitBoundOnce(pod)
	f.stopAndCheck()
}

// TestForgedUIDDoesNotHideRealPod delivers a pod with the UID of a pending pod and another name, before and after the
// watch shows the pending pod. While a scheduling cycle of the forged pod runs, an event makes the real pod fit.
func TestForgedUIDDoesNotHideRealPod(t *testing.T) {
	for _, forgedFirst := range []bool{true, false} {
		f := newFixture(t, schedtest.PlainNode("small", "1"))
		pod, forged := schedtest.PlainPod("pod", "4"), schedtest.PlainPod("forged", "1")
		forged.UID = pod.UID
		if forgedFirst {
			f.in.Take(forged)
			f.awaitWaitingBind(forged)
			f.API.Put(pod)
		} else {
			f.API.Put(pod)
			f.AwaitUnschedulable("pod")
			f.in.Take(forged)
			// The scheduler selects a node for the forged pod if it takes it from the queue.
			time.Sleep(50 * time.Millisecond)
		}
		f.API.Put(schedtest.PlainNode("large", "4"))
		time.Sleep(50 * time.Millisecond)
		f.clock.Step(EarlyExpiry + SweepInterval)
		f.AwaitBoundOnce(pod)
		f.clock.Step(fateKeptFor + SweepInterval)
		f.stopAndCheck()
		if len(f.in.pending) != 0 {
			t.Errorf("%d pods are remembered as pending, want 0", len(f.in.pending))
		}
	}
}

// TestUnschedulableEarlyPodIsRetriedAfterItIsStored delivers a pod that does not fit. It is left to
// the watch, which queues it again.
func TestUnschedulableEarlyPodIsRetriedAfterItIsStored(t *testing.T) {
	f := newFixture(t, schedtest.PlainNode("node", "1"))
	returnedPods := schedtest.CounterDelta(t, func() (float64, error) { return testutil.GetCounterMetricValue(returned) })
	pod := schedtest.PlainPod("pod", "2")
	f.in.Take(pod.DeepCopy())
	f.Eventually("the pod is left to the watch", func() error {
		if got := returnedPods(); got != 1 {
			return fmt.Errorf("%d pods were left to the watch, want 1", got)
		}
		return nil
	})
	f.API.Put(pod)
	f.AwaitUnschedulable("pod")
	f.API.Put(schedtest.PlainNode("larger", "4"))
	f.AwaitBoundOnce(pod)
	f.stopAndCheck()
}

func TestEarlyPodsDoNotPreempt(t *testing.T) {
	f := newFixture(t, schedtest.PlainNode("node", "4"))
	pod := schedtest.PlainPod("pod", "1")
	f.in.Take(pod)
	fw := f.Sched.Profiles[v1.DefaultSchedulerName]
	result, status := fw.RunPostFilterPlugins(f.Ctx, framework.NewCycleState(), pod, framework.NewDefaultNodeToStatus())
	if want := "the pod is not stored yet and must not preempt others"; result != nil || !status.IsRejected() || status.Message() != want {
		t.Errorf("RunPostFilterPlugins() = %v, %v, want nil and a rejection with %q", result, status, want)
	}
	f.API.Put(pod.DeepCopy())
	f.AwaitBound("pod")
	f.stopAndCheck()
}

func TestEarlyPodDeletedBeforeBindLeavesCache(t *testing.T) {
	f := newFixture(t, schedtest.PlainNode("node", "4"))
	pod := schedtest.PlainPod("pod", "4")
	f.in.Take(pod.DeepCopy())
	f.awaitPodCount(1)
	f.in.handleDelete(klog.Logger{}, pod)
	f.awaitPodCount(0)
	f.stopAndCheck()
}

func TestForeignPodsAreDropped(t *testing.T) {
	f := newFixture(t)
	for name, change := range map[string]func(*v1.Pod){
		"without a UID":          func(p *v1.Pod) { p.UID = "" },
		"without a name":         func(p *v1.Pod) { p.Name = "" },
		"with a node":            func(p *v1.Pod) { p.Spec.NodeName = "node" },
		"with another scheduler": func(p *v1.Pod) { p.Spec.SchedulerName = "other" },
	} {
		foreign := schedtest.CounterDelta(t, droppedCounter(dropForeign))
		pod := schedtest.PlainPod("pod", "1")
		change(pod)
		f.in.Take(pod)
		if foreign() != 1 {
			t.Errorf("Take() of a pod %s did not drop the pod as foreign", name)
		}
	}
	f.stopAndCheck()
}

func TestStandbyDropsPods(t *testing.T) {
	base := schedtest.New(t, nil)
	in := Attach(base.Sched, []config.KubeSchedulerProfile{*schedtest.DefaultProfile(t)}, base.Informers, fake.NewClientset())
	notLeading := schedtest.CounterDelta(t, droppedCounter(dropNotLeading))
	in.Take(schedtest.PlainPod("pod", "1"))
	if notLeading() != 1 || len(in.early) != 0 {
		t.Errorf("%d pods dropped and %d early pods, want 1 and 0", notLeading(), len(in.early))
	}
}

func TestPodsOverTheLimitAreDropped(t *testing.T) {
	f := newFixture(t)
	overload := schedtest.CounterDelta(t, droppedCounter(dropOverload))
	for i := range maxEarly {
		f.in.early[schedtest.PlainPod(fmt.Sprint(i), "1").UID] = &early{pod: schedtest.PlainPod(fmt.Sprint(i), "1"), since: f.clock.Now(), settled: make(chan struct{})}
	}
	f.in.Take(schedtest.PlainPod("pod", "1"))
	if overload() != 1 || len(f.in.early) != maxEarly {
		t.Errorf("%d pods dropped and %d early pods, want 1 and %d", overload(), len(f.in.early), maxEarly)
	}
}

// TestLargePodsAreDropped delivers large pods of two namespaces until their size is too large.
func TestLargePodsAreDropped(t *testing.T) {
	base := schedtest.New(t, nil)
	in := Attach(base.Sched, []config.KubeSchedulerProfile{*schedtest.DefaultProfile(t)}, base.Informers, fake.NewClientset())
	in.startSweep(klog.Background())
	t.Cleanup(in.stopSweep)
	overload := schedtest.CounterDelta(t, droppedCounter(dropOverload))
	share := schedtest.CounterDelta(t, droppedCounter(dropShare))
	const mebibytes = maxEarlyBytes >> 20
	deliver := func(namespace string, count int) {
		for i := range count {
			pod := schedtest.PlainPod(fmt.Sprint(namespace, i), "1")
			pod.Namespace, pod.Annotations = namespace, map[string]string{"large": strings.Repeat("x", 1<<20-1<<10)}
			in.Take(pod)
		}
	}
	deliver("flood", mebibytes)
	if taken := len(in.early); taken != mebibytes/2 || share() != mebibytes/2 {
		t.Errorf("%d pods of one namespace were taken and %v dropped because of its share, want %d each", taken, share(), mebibytes/2)
	}
	for i := range 8 {
		deliver(fmt.Sprint("other", i), mebibytes)
	}
	if overload() == 0 || in.all.bytes > maxEarlyBytes {
		t.Errorf("%d bytes of early pods, and %v dropped because of overload, want at most %d and some dropped", in.all.bytes, overload(), maxEarlyBytes)
	}
	for _, e := range in.early {
		in.forget(e)
	}
	if in.all != (usage{}) {
		t.Errorf("usage after all pods were forgotten: %+v, want none", in.all)
	}
}

// TestOneNamespaceLeavesRoomForOthers delivers as many pods of one namespace as it may have, and then
// pods of others.
func TestOneNamespaceLeavesRoomForOthers(t *testing.T) {
	base := schedtest.New(t, nil)
	in := Attach(base.Sched, []config.KubeSchedulerProfile{*schedtest.DefaultProfile(t)}, base.Informers, fake.NewClientset())
	// The scheduler does not run, so all pods remain in the queue.
	in.startSweep(klog.Background())
	t.Cleanup(in.stopSweep)
	deliver := func(namespace string, count int) (taken int) {
		before := len(in.early)
		for i := range count {
			pod := schedtest.PlainPod(fmt.Sprintf("%s-%d", namespace, i), "1")
			pod.Namespace = namespace
			in.Take(pod)
		}
		in.mu.Lock()
		defer in.mu.Unlock()
		return len(in.early) - before
	}
	for _, c := range []struct {
		namespace       string
		deliver, expect int
	}{{"flood", maxEarly, maxEarly / 2}, {"a", 100, 100}, {"flood", 1, 0}, {"second-flood", maxEarly, (maxEarly/2 - 100) / 2}, {"b", 100, 100}} {
		if taken := deliver(c.namespace, c.deliver); taken != c.expect {
			t.Errorf("%d of %d pods of namespace %s were taken, want %d", taken, c.deliver, c.namespace, c.expect)
		}
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, e := range in.early {
		in.forget(e)
		in.forget(e)
	}
	if len(in.perNamespace) != 0 {
		t.Errorf("early pods per namespace = %v after all were forgotten, want none", in.perNamespace)
	}
}

// TestRandomlyDeliveredPodsAreBoundOnce delivers, stores, refuses and deletes pods in random order
// while time passes. Each pod that stays stored is bound once, and nothing is remembered of the
// others.
func TestRandomlyDeliveredPodsAreBoundOnce(t *testing.T) {
	random := schedtest.NewRandom(t)
	f := newFixture(t)
	for i := range 5 {
		f.API.Put(schedtest.PlainNode(fmt.Sprintf("node-%d", i), "64"))
	}
	var stored []*v1.Pod
	for i := range 400 {
		pod := schedtest.PlainPod(fmt.Sprintf("pod-%d", i), "100m")
		take := func() { f.in.Take(pod.DeepCopy()) }
		put := func() { f.API.Put(pod.DeepCopy()) }
		switch random.IntN(8) {
		case 0: // delivered and never stored
			take()
			continue
		case 1: // stored and then delivered
			put()
			take()
		case 2: // not delivered
			put()
		case 3: // deleted
			take()
			put()
			f.API.Remove(pod)
			continue
		case 4: // stored late
			take()
			f.clock.Step(time.Duration(random.IntN(3000)) * time.Millisecond)
			put()
		case 5: // stored with other requests than delivered
			take()
			pod = schedtest.PlainPod(pod.Name, "150m")
			put()
		default:
			take()
			put()
		}
		stored = append(stored, pod)
		if random.IntN(10) == 0 {
			f.clock.Step(SweepInterval)
		}
		// Deliver further pods of the namespace although some were never stored.
		f.in.mu.Lock()
		clear(f.in.paused)
		f.in.mu.Unlock()
	}
	for _, pod := range stored {
		f.AwaitBoundOnce(pod)
	}
	f.Eventually("no early pod is remembered", func() error {
		f.clock.Step(fateKeptFor)
		f.in.mu.Lock()
		defer f.in.mu.Unlock()
		if len(f.in.early) > 0 {
			return fmt.Errorf("%d early pods are remembered", len(f.in.early))
		}
		return nil
	})
	f.stopAndCheck()
}
