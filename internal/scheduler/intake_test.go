package scheduler

import (
	"context"
	"errors"
	"fmt"
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
)

// expectant is a scheduler with an intake whose clock the test sets.
type expectant struct {
	*live
	in    *Intake
	clock *testingclock.FakeClock
}

func newExpectant(t *testing.T, nodes ...*v1.Node) *expectant {
	t.Helper()
	l := newFaulty(t, nodes)
	e := &expectant{live: l, clock: testingclock.NewFakeClock(time.Now())}
	e.in = AttachIntake(l.sched, []config.KubeSchedulerProfile{*defaultProfile(t)}, l.informers, fake.NewClientset())
	e.in.clock = e.clock
	e.in.ask = func(_ context.Context, namespace, name string) (*v1.Pod, error) {
		if pod := l.api.pod(namespace + "/" + name); pod != nil {
			return pod.DeepCopy(), nil
		}
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
	}
	l.run()
	return e
}

// placed waits until a pod has been given a node, bound or not.
func (e *expectant) placed(pods int) {
	e.t.Helper()
	e.eventually(fmt.Sprintf("%d pods are placed", pods), func() error {
		if count, _ := e.sched.Cache.PodCount(); count != pods {
			return fmt.Errorf("%d are", count)
		}
		return nil
	})
}

// bindWaits waits until the bind of a pod waits for it to be stored: it is asked for only
// then, and the clock moves only when the test says so.
func (e *expectant) bindWaits(pod *v1.Pod) {
	e.t.Helper()
	e.eventually("the bind waits", func() error {
		e.in.mu.Lock()
		defer e.in.mu.Unlock()
		if early := e.in.early[pod.UID]; early == nil || !early.binding {
			return errors.New("it does not")
		}
		return nil
	})
}

// idle waits until nothing is left of early pods, and wants all else to be right.
func (e *expectant) idle() {
	e.t.Helper()
	e.eventually("nothing is left", func() error {
		e.in.mu.Lock()
		early, names := len(e.in.early), len(e.in.names)
		e.in.mu.Unlock()
		if flying := len(e.sched.SchedulingQueue.InFlightPods()); early+names+flying > 0 {
			return fmt.Errorf("%d early pods, %d names, %d in flight", early, names, flying)
		}
		return nil
	})
	e.stop()
	e.eventually("the scheduler knows what there is", e.differs)
}

// counts returns how much a counter has grown since.
func counts(t *testing.T, read func() (float64, error)) (grown func() int) {
	t.Helper()
	before, err := read()
	if err != nil {
		t.Fatal(err)
	}
	return func() int {
		now, err := read()
		if err != nil {
			t.Fatal(err)
		}
		return int(now - before)
	}
}

func droppedAs(reason string) func() (float64, error) {
	return func() (float64, error) { return testutil.GetCounterMetricValue(dropped.WithLabelValues(reason)) }
}

func takenFrom(source string) func() (float64, error) {
	return func() (float64, error) { return testutil.GetCounterMetricValue(taken.WithLabelValues(source)) }
}

func expiredAs(reason string) func() (float64, error) {
	return func() (float64, error) { return testutil.GetCounterMetricValue(expired.WithLabelValues(reason)) }
}

func TestWebhookFirst(t *testing.T) {
	e := newExpectant(t, plainNode("node", "4"))
	byWebhook, byWatch := counts(t, takenFrom(sourceWebhook)), counts(t, takenFrom(sourceWatch))
	pod := plainPod("pod", "1")
	e.in.Take(pod.DeepCopy())
	e.placed(1)
	time.Sleep(50 * time.Millisecond)
	if e.api.binds[pod.UID] != 0 || e.api.pod("default/pod") != nil {
		t.Fatal("bound before it is stored")
	}
	e.api.put(pod)
	e.boundOnce(pod)
	e.idle()
	if byWebhook() != 1 || byWatch() != 0 {
		t.Errorf("%d by the webhook, %d by the watch", byWebhook(), byWatch())
	}
}

func TestWatchFirst(t *testing.T) {
	e := newExpectant(t, plainNode("node", "4"))
	known := counts(t, droppedAs(dropKnown))
	pod := plainPod("pod", "1")
	e.api.put(pod.DeepCopy())
	e.awaitNode("pod")
	e.in.Take(pod.DeepCopy())
	e.boundOnce(pod)
	e.idle()
	if known() != 1 {
		t.Errorf("%d were known", known())
	}
}

func TestHandedOverTwice(t *testing.T) {
	e := newExpectant(t, plainNode("node", "4"))
	pod := plainPod("pod", "1")
	e.in.Take(pod.DeepCopy())
	e.in.Take(pod.DeepCopy())
	e.api.put(pod)
	e.boundOnce(pod)
	e.idle()
}

// TestNeverStored hands over a pod that fills the node and is refused: the next one
// gets the room.
func TestNeverStored(t *testing.T) {
	e := newExpectant(t, plainNode("node", "4"))
	absent, rests := counts(t, expiredAs(expiredAbsent)), counts(t, droppedAs(dropNamespace))
	refused := plainPod("refused", "4")
	e.in.Take(refused.DeepCopy())
	e.bindWaits(refused)
	next := plainPod("next", "4")
	e.api.put(next)
	e.awaitRefusal("next")
	e.clock.Step(earlyPatience + sweepInterval)
	e.eventually("it was asked for", func() error {
		e.in.mu.Lock()
		defer e.in.mu.Unlock()
		if early := e.in.early[refused.UID]; early == nil || early.asked != 1 {
			return fmt.Errorf("%+v", early)
		}
		return nil
	})
	if absent() != 0 || e.api.pod("default/next").Spec.NodeName != "" {
		t.Fatal("it had no time to be stored")
	}
	e.clock.Step(lastPatience)
	e.boundOnce(next)
	e.in.Take(plainPod("another", "1"))
	e.idle()
	if absent() != 1 || rests() != 1 {
		t.Errorf("%d expired, %d of a resting namespace", absent(), rests())
	}
}

// TestNobodyKnows has an API server that does not answer: the pod goes all the same,
// and comes by the watch when it is there after all.
func TestNobodyKnows(t *testing.T) {
	e := newExpectant(t, plainNode("node", "4"))
	late := counts(t, expiredAs(expiredTimeout))
	e.in.ask = func(context.Context, string, string) (*v1.Pod, error) { return nil, errors.New("no answer") }
	pod := plainPod("pod", "4")
	e.in.Take(pod.DeepCopy())
	e.placed(1)
	e.clock.Step(earlyExpiry + sweepInterval)
	e.placed(0)
	e.api.put(pod)
	e.boundOnce(pod)
	e.idle()
	if late() != 1 {
		t.Errorf("%d expired", late())
	}
}

// TestNeverPlacedOrStored has a pod that waits in the queue when it expires.
func TestNeverPlacedOrStored(t *testing.T) {
	e := newExpectant(t)
	pod := plainPod("pod", "1")
	pod.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "closed"}}
	e.in.Take(pod)
	e.clock.Step(earlyExpiry + sweepInterval)
	e.eventually("it leaves the queue", func() error {
		if pending, summary := e.sched.SchedulingQueue.PendingPods(); len(pending) != 0 {
			return errors.New(summary)
		}
		return nil
	})
	e.clock.Step(earlyMemory + sweepInterval)
	e.idle()
}

// TestWatchIsSlow binds a pod that the API server has, before the watch says so.
func TestWatchIsSlow(t *testing.T) {
	e := newExpectant(t, plainNode("node", "4"))
	pod := plainPod("pod", "1")
	e.api.gap(func() {
		e.in.Take(pod.DeepCopy())
		e.bindWaits(pod)
		e.api.put(pod)
		e.clock.Step(earlyPatience + sweepInterval)
		e.boundOnce(pod)
	})
	e.eventually("the watch has caught up", func() error {
		if assumed, _ := e.sched.Cache.IsAssumedPod(pod); assumed {
			return errors.New("it has not")
		}
		return nil
	})
	// The watch never showed it without a node.
	e.clock.Step(earlyMemory + sweepInterval)
	e.idle()
}

// TestStoredOtherwise stores a pod that does not fit where it was placed.
func TestStoredOtherwise(t *testing.T) {
	e := newExpectant(t, plainNode("small", "2"))
	pod := plainPod("pod", "1")
	e.in.Take(pod.DeepCopy())
	e.placed(1)
	e.api.put(plainNode("large", "4"))
	stored := plainPod("pod", "3")
	e.api.put(stored)
	e.boundOnce(stored)
	e.clock.Step(earlyMemory + sweepInterval)
	e.idle()
	if info := e.nodeInfo("large"); info.Requested.MilliCPU != 3000 {
		t.Errorf("%d millicores are requested", info.Requested.MilliCPU)
	}
}

// TestNothingIsSeenOfPodsThatAreNotStored looks at what comes first in a binding cycle:
// it says no, before any plugin is asked.
func TestNothingIsSeenOfPodsThatAreNotStored(t *testing.T) {
	e := newExpectant(t, plainNode("node", "4"))
	pod := plainPod("pod", "1")
	e.in.Take(pod)
	fw, said := e.sched.Profiles[v1.DefaultSchedulerName], make(chan *fwk.Status, 2)
	go func() { said <- fw.RunPreBindPreFlights(e.ctx, framework.NewCycleState(), pod, "node") }()
	go func() { said <- fw.WaitOnPermit(e.ctx, pod) }()
	e.placed(1)
	time.Sleep(20 * time.Millisecond)
	if len(said) != 0 {
		t.Fatal("it goes on before the pod is stored")
	}
	e.clock.Step(earlyExpiry + sweepInterval)
	for range 2 {
		if status := <-said; !errors.Is(status.AsError(), errNotStored) {
			t.Errorf("%v", status)
		}
	}
	e.idle()
}

// TestAnotherOfTheName has two creations of one name of which the second is stored.
func TestAnotherOfTheName(t *testing.T) {
	e := newExpectant(t, plainNode("node", "4"))
	refused, pod := plainPod("pod", "4"), plainPod("pod", "2")
	refused.UID = "refused"
	e.in.Take(refused)
	e.placed(1)
	e.in.Take(pod.DeepCopy())
	e.api.put(pod)
	e.boundOnce(pod)
	e.idle()
}

// TestEarlyAndUnschedulable leaves a pod that does not fit to the watch, and evicts
// nobody for it.
func TestEarlyAndUnschedulable(t *testing.T) {
	e := newExpectant(t, plainNode("node", "1"))
	again := counts(t, func() (float64, error) { return testutil.GetCounterMetricValue(returned) })
	pod := plainPod("pod", "2")
	e.in.Take(pod.DeepCopy())
	e.eventually("it is returned", func() error {
		if again() != 1 {
			return errors.New("it is not")
		}
		return nil
	})
	e.api.put(pod)
	e.awaitRefusal("pod")
	e.api.put(plainNode("larger", "4"))
	e.boundOnce(pod)
	e.idle()
}

func TestEarlyPodsPreemptNobody(t *testing.T) {
	e := newExpectant(t, plainNode("node", "4"))
	pod := plainPod("pod", "1")
	e.in.Take(pod)
	fw := e.sched.Profiles[v1.DefaultSchedulerName]
	result, status := fw.RunPostFilterPlugins(e.ctx, framework.NewCycleState(), pod, framework.NewDefaultNodeToStatus())
	if result != nil || !status.IsRejected() || status.Message() != "the pod is not stored yet, so it preempts nobody" {
		t.Errorf("%v, %v", result, status)
	}
	e.api.put(pod.DeepCopy())
	e.awaitNode("pod")
	e.idle()
}

func TestDeletedBeforeItIsBound(t *testing.T) {
	e := newExpectant(t, plainNode("node", "4"))
	pod := plainPod("pod", "4")
	e.in.Take(pod.DeepCopy())
	e.placed(1)
	e.in.deleted(klog.Logger{}, pod)
	e.placed(0)
	e.idle()
}

func TestWhatIsNotTakenIn(t *testing.T) {
	e := newExpectant(t)
	for what, change := range map[string]func(*v1.Pod){
		"no UID":    func(p *v1.Pod) { p.UID = "" },
		"no name":   func(p *v1.Pod) { p.Name = "" },
		"a node":    func(p *v1.Pod) { p.Spec.NodeName = "node" },
		"another's": func(p *v1.Pod) { p.Spec.SchedulerName = "other" },
	} {
		foreign := counts(t, droppedAs(dropForeign))
		pod := plainPod("pod", "1")
		change(pod)
		e.in.Take(pod)
		if foreign() != 1 {
			t.Errorf("a pod with %s is taken in", what)
		}
	}
	e.idle()
}

func TestStandbyTakesNothingIn(t *testing.T) {
	l := newFaulty(t, nil)
	in := AttachIntake(l.sched, []config.KubeSchedulerProfile{*defaultProfile(t)}, l.informers, fake.NewClientset())
	notLeading := counts(t, droppedAs(dropNotLeading))
	in.Take(plainPod("pod", "1"))
	if notLeading() != 1 || len(in.early) != 0 {
		t.Errorf("%d dropped, %d early pods", notLeading(), len(in.early))
	}
}

func TestOverloadIsLeftToTheWatch(t *testing.T) {
	e := newExpectant(t)
	overload := counts(t, droppedAs(dropOverload))
	for i := range mostEarly {
		e.in.early[plainPod(fmt.Sprint(i), "1").UID] = &early{pod: plainPod(fmt.Sprint(i), "1"), since: e.clock.Now(), settled: make(chan struct{})}
	}
	e.in.Take(plainPod("pod", "1"))
	if overload() != 1 || len(e.in.early) != mostEarly {
		t.Errorf("%d dropped, %d early pods", overload(), len(e.in.early))
	}
}

// TestPodsInAnyOrder hands over, stores, refuses and deletes pods at random while time
// passes. All that stay are bound once, and nothing is left of the others.
func TestPodsInAnyOrder(t *testing.T) {
	random := randomSeed(t)
	e := newExpectant(t)
	for i := range 5 {
		e.api.put(plainNode(fmt.Sprintf("node-%d", i), "64"))
	}
	var stay []*v1.Pod
	for i := range 400 {
		pod := plainPod(fmt.Sprintf("pod-%d", i), "100m")
		take := func() { e.in.Take(pod.DeepCopy()) }
		put := func() { e.api.put(pod.DeepCopy()) }
		switch random.IntN(8) {
		case 0: // refused
			take()
			continue
		case 1:
			put()
			take()
		case 2: // missed
			put()
		case 3:
			take()
			put()
			e.api.remove(pod)
			continue
		case 4: // stored late
			take()
			e.clock.Step(time.Duration(random.IntN(3000)) * time.Millisecond)
			put()
		case 5: // changed on the way
			take()
			pod = plainPod(pod.Name, "150m")
			put()
		default:
			take()
			put()
		}
		stay = append(stay, pod)
		if random.IntN(10) == 0 {
			e.clock.Step(sweepInterval)
		}
		e.in.mu.Lock()
		clear(e.in.resting)
		e.in.mu.Unlock()
	}
	for _, pod := range stay {
		e.boundOnce(pod)
	}
	e.eventually("early pods are forgotten", func() error {
		e.clock.Step(earlyMemory)
		e.in.mu.Lock()
		defer e.in.mu.Unlock()
		if len(e.in.early) > 0 {
			return fmt.Errorf("%d are not", len(e.in.early))
		}
		return nil
	})
	e.idle()
}
