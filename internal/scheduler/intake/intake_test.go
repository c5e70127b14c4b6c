package intake

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

	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// expectant is a scheduler with an intake whose clock the test sets.
type expectant struct {
	*schedtest.Live
	in    *Intake
	clock *testingclock.FakeClock
}

func newExpectant(t *testing.T, nodes ...*v1.Node) *expectant {
	t.Helper()
	l := schedtest.NewFaulty(t, nodes)
	e := &expectant{Live: l, clock: testingclock.NewFakeClock(time.Now())}
	e.in = Attach(l.Sched, []config.KubeSchedulerProfile{*schedtest.DefaultProfile(t)}, l.Informers, fake.NewClientset())
	e.in.clock = e.clock
	e.in.getPod = func(_ context.Context, namespace, name string) (*v1.Pod, error) {
		if pod := l.API.Pod(namespace + "/" + name); pod != nil {
			return pod.DeepCopy(), nil
		}
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
	}
	l.Run()
	return e
}

// placed waits until a pod has been given a node, bound or not.
func (e *expectant) placed(pods int) {
	e.T.Helper()
	e.Eventually(fmt.Sprintf("%d pods are placed", pods), func() error {
		if count, _ := e.Sched.Cache.PodCount(); count != pods {
			return fmt.Errorf("%d are", count)
		}
		return nil
	})
}

// bindWaits waits until the bind of a pod waits for it to be stored: it is asked for only
// then, and the clock moves only when the test says so.
func (e *expectant) bindWaits(pod *v1.Pod) {
	e.T.Helper()
	e.Eventually("the bind waits", func() error {
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
	e.T.Helper()
	e.Eventually("nothing is left", func() error {
		e.in.mu.Lock()
		early, names := len(e.in.early), len(e.in.names)
		e.in.mu.Unlock()
		if flying := len(e.Sched.SchedulingQueue.InFlightPods()); early+names+flying > 0 {
			return fmt.Errorf("%d early pods, %d names, %d in flight", early, names, flying)
		}
		return nil
	})
	e.Stop()
	e.Eventually("the scheduler knows what there is", e.Differs)
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
	e := newExpectant(t, schedtest.PlainNode("node", "4"))
	byWebhook, byWatch := schedtest.Counts(t, takenFrom(sourceWebhook)), schedtest.Counts(t, takenFrom(sourceWatch))
	pod := schedtest.PlainPod("pod", "1")
	e.in.Take(pod.DeepCopy())
	e.placed(1)
	time.Sleep(50 * time.Millisecond)
	if e.API.Binds[pod.UID] != 0 || e.API.Pod("default/pod") != nil {
		t.Fatal("bound before it is stored")
	}
	e.API.Put(pod)
	e.BoundOnce(pod)
	e.idle()
	if byWebhook() != 1 || byWatch() != 0 {
		t.Errorf("%d by the webhook, %d by the watch", byWebhook(), byWatch())
	}
}

func TestWatchFirst(t *testing.T) {
	e := newExpectant(t, schedtest.PlainNode("node", "4"))
	known := schedtest.Counts(t, droppedAs(dropExists))
	pod := schedtest.PlainPod("pod", "1")
	e.API.Put(pod.DeepCopy())
	e.AwaitNode("pod")
	e.in.Take(pod.DeepCopy())
	e.BoundOnce(pod)
	e.idle()
	if known() != 1 {
		t.Errorf("%d were known", known())
	}
}

func TestHandedOverTwice(t *testing.T) {
	e := newExpectant(t, schedtest.PlainNode("node", "4"))
	pod := schedtest.PlainPod("pod", "1")
	e.in.Take(pod.DeepCopy())
	e.in.Take(pod.DeepCopy())
	e.API.Put(pod)
	e.BoundOnce(pod)
	e.idle()
}

// TestNeverStored hands over a pod that fills the node and is refused: the next one
// gets the room.
func TestNeverStored(t *testing.T) {
	e := newExpectant(t, schedtest.PlainNode("node", "4"))
	absent, rests := schedtest.Counts(t, expiredAs(expiredAbsent)), schedtest.Counts(t, droppedAs(dropNamespace))
	refused := schedtest.PlainPod("refused", "4")
	e.in.Take(refused.DeepCopy())
	e.bindWaits(refused)
	next := schedtest.PlainPod("next", "4")
	e.API.Put(next)
	e.AwaitRefusal("next")
	e.clock.Step(firstGetAfter + SweepInterval)
	e.Eventually("it was asked for", func() error {
		e.in.mu.Lock()
		defer e.in.mu.Unlock()
		if early := e.in.early[refused.UID]; early == nil || early.notFound != 1 {
			return fmt.Errorf("%+v", early)
		}
		return nil
	})
	if absent() != 0 || e.API.Pod("default/next").Spec.NodeName != "" {
		t.Fatal("it had no time to be stored")
	}
	e.clock.Step(secondGetAfter)
	e.BoundOnce(next)
	e.in.Take(schedtest.PlainPod("another", "1"))
	e.idle()
	if absent() != 1 || rests() != 1 {
		t.Errorf("%d expired, %d of a paused namespace", absent(), rests())
	}
}

// TestNobodyKnows has an API server that does not answer: the pod goes all the same,
// and comes by the watch when it is there after all.
func TestNobodyKnows(t *testing.T) {
	e := newExpectant(t, schedtest.PlainNode("node", "4"))
	late := schedtest.Counts(t, expiredAs(expiredTimeout))
	e.in.getPod = func(context.Context, string, string) (*v1.Pod, error) { return nil, errors.New("no answer") }
	pod := schedtest.PlainPod("pod", "4")
	e.in.Take(pod.DeepCopy())
	e.placed(1)
	e.clock.Step(EarlyExpiry + SweepInterval)
	e.placed(0)
	e.API.Put(pod)
	e.BoundOnce(pod)
	e.idle()
	if late() != 1 {
		t.Errorf("%d expired", late())
	}
}

// TestNeverPlacedOrStored has a pod that waits in the queue when it expires.
func TestNeverPlacedOrStored(t *testing.T) {
	e := newExpectant(t)
	pod := schedtest.PlainPod("pod", "1")
	pod.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "closed"}}
	e.in.Take(pod)
	e.clock.Step(EarlyExpiry + SweepInterval)
	e.Eventually("it leaves the queue", func() error {
		if pending, summary := e.Sched.SchedulingQueue.PendingPods(); len(pending) != 0 {
			return errors.New(summary)
		}
		return nil
	})
	e.clock.Step(fateKeptFor + SweepInterval)
	e.idle()
}

// TestWatchIsSlow binds a pod that the API server has, before the watch says so.
func TestWatchIsSlow(t *testing.T) {
	e := newExpectant(t, schedtest.PlainNode("node", "4"))
	pod := schedtest.PlainPod("pod", "1")
	e.API.Gap(func() {
		e.in.Take(pod.DeepCopy())
		e.bindWaits(pod)
		e.API.Put(pod)
		e.clock.Step(firstGetAfter + SweepInterval)
		e.BoundOnce(pod)
	})
	e.Eventually("the watch has caught up", func() error {
		if assumed, _ := e.Sched.Cache.IsAssumedPod(pod); assumed {
			return errors.New("it has not")
		}
		return nil
	})
	// The watch never showed it without a node.
	e.clock.Step(fateKeptFor + SweepInterval)
	e.idle()
}

// TestStoredOtherwise stores a pod that does not fit where it was placed.
func TestStoredOtherwise(t *testing.T) {
	e := newExpectant(t, schedtest.PlainNode("small", "2"))
	pod := schedtest.PlainPod("pod", "1")
	e.in.Take(pod.DeepCopy())
	e.placed(1)
	e.API.Put(schedtest.PlainNode("large", "4"))
	stored := schedtest.PlainPod("pod", "3")
	e.API.Put(stored)
	e.BoundOnce(stored)
	e.clock.Step(fateKeptFor + SweepInterval)
	e.idle()
	if info := e.NodeInfo("large"); info.Requested.MilliCPU != 3000 {
		t.Errorf("%d millicores are requested", info.Requested.MilliCPU)
	}
}

// TestNothingIsSeenOfPodsThatAreNotStored looks at what comes first in a binding cycle:
// it says no, before any plugin is asked.
func TestNothingIsSeenOfPodsThatAreNotStored(t *testing.T) {
	e := newExpectant(t, schedtest.PlainNode("node", "4"))
	pod := schedtest.PlainPod("pod", "1")
	e.in.Take(pod)
	fw, said := e.Sched.Profiles[v1.DefaultSchedulerName], make(chan *fwk.Status, 2)
	go func() { said <- fw.RunPreBindPreFlights(e.Ctx, framework.NewCycleState(), pod, "node") }()
	go func() { said <- fw.WaitOnPermit(e.Ctx, pod) }()
	e.placed(1)
	time.Sleep(20 * time.Millisecond)
	if len(said) != 0 {
		t.Fatal("it goes on before the pod is stored")
	}
	e.clock.Step(EarlyExpiry + SweepInterval)
	for range 2 {
		if status := <-said; !errors.Is(status.AsError(), errNotStored) {
			t.Errorf("%v", status)
		}
	}
	e.idle()
}

// TestAnotherOfTheName creates two pods with one name; only the second is stored.
func TestAnotherOfTheName(t *testing.T) {
	e := newExpectant(t, schedtest.PlainNode("node", "4"))
	refused, pod := schedtest.PlainPod("pod", "4"), schedtest.PlainPod("pod", "2")
	refused.UID = "refused"
	e.in.Take(refused)
	e.placed(1)
	e.in.Take(pod.DeepCopy())
	e.API.Put(pod)
	e.BoundOnce(pod)
	e.idle()
}

// TestEarlyAndUnschedulable takes in a pod that does not fit. It is retried after the
// watch shows it, and no pod is evicted for it.
func TestEarlyAndUnschedulable(t *testing.T) {
	e := newExpectant(t, schedtest.PlainNode("node", "1"))
	again := schedtest.Counts(t, func() (float64, error) { return testutil.GetCounterMetricValue(returned) })
	pod := schedtest.PlainPod("pod", "2")
	e.in.Take(pod.DeepCopy())
	e.Eventually("it is returned", func() error {
		if again() != 1 {
			return errors.New("it is not")
		}
		return nil
	})
	e.API.Put(pod)
	e.AwaitRefusal("pod")
	e.API.Put(schedtest.PlainNode("larger", "4"))
	e.BoundOnce(pod)
	e.idle()
}

func TestEarlyPodsPreemptNobody(t *testing.T) {
	e := newExpectant(t, schedtest.PlainNode("node", "4"))
	pod := schedtest.PlainPod("pod", "1")
	e.in.Take(pod)
	fw := e.Sched.Profiles[v1.DefaultSchedulerName]
	result, status := fw.RunPostFilterPlugins(e.Ctx, framework.NewCycleState(), pod, framework.NewDefaultNodeToStatus())
	if result != nil || !status.IsRejected() || status.Message() != "the pod is not stored yet and must not preempt others" {
		t.Errorf("%v, %v", result, status)
	}
	e.API.Put(pod.DeepCopy())
	e.AwaitNode("pod")
	e.idle()
}

func TestDeletedBeforeItIsBound(t *testing.T) {
	e := newExpectant(t, schedtest.PlainNode("node", "4"))
	pod := schedtest.PlainPod("pod", "4")
	e.in.Take(pod.DeepCopy())
	e.placed(1)
	e.in.handleDelete(klog.Logger{}, pod)
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
		foreign := schedtest.Counts(t, droppedAs(dropForeign))
		pod := schedtest.PlainPod("pod", "1")
		change(pod)
		e.in.Take(pod)
		if foreign() != 1 {
			t.Errorf("a pod with %s is taken in", what)
		}
	}
	e.idle()
}

func TestStandbyTakesNothingIn(t *testing.T) {
	l := schedtest.NewFaulty(t, nil)
	in := Attach(l.Sched, []config.KubeSchedulerProfile{*schedtest.DefaultProfile(t)}, l.Informers, fake.NewClientset())
	notLeading := schedtest.Counts(t, droppedAs(dropNotLeading))
	in.Take(schedtest.PlainPod("pod", "1"))
	if notLeading() != 1 || len(in.early) != 0 {
		t.Errorf("%d dropped, %d early pods", notLeading(), len(in.early))
	}
}

func TestOverloadIsLeftToTheWatch(t *testing.T) {
	e := newExpectant(t)
	overload := schedtest.Counts(t, droppedAs(dropOverload))
	for i := range maxEarly {
		e.in.early[schedtest.PlainPod(fmt.Sprint(i), "1").UID] = &early{pod: schedtest.PlainPod(fmt.Sprint(i), "1"), since: e.clock.Now(), settled: make(chan struct{})}
	}
	e.in.Take(schedtest.PlainPod("pod", "1"))
	if overload() != 1 || len(e.in.early) != maxEarly {
		t.Errorf("%d dropped, %d early pods", overload(), len(e.in.early))
	}
}

// TestPodsInAnyOrder hands over, stores, refuses and deletes pods at random while time
// passes. All that stay are bound once, and nothing is left of the others.
func TestPodsInAnyOrder(t *testing.T) {
	random := schedtest.RandomSeed(t)
	e := newExpectant(t)
	for i := range 5 {
		e.API.Put(schedtest.PlainNode(fmt.Sprintf("node-%d", i), "64"))
	}
	var stay []*v1.Pod
	for i := range 400 {
		pod := schedtest.PlainPod(fmt.Sprintf("pod-%d", i), "100m")
		take := func() { e.in.Take(pod.DeepCopy()) }
		put := func() { e.API.Put(pod.DeepCopy()) }
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
			e.API.Remove(pod)
			continue
		case 4: // stored late
			take()
			e.clock.Step(time.Duration(random.IntN(3000)) * time.Millisecond)
			put()
		case 5: // changed on the way
			take()
			pod = schedtest.PlainPod(pod.Name, "150m")
			put()
		default:
			take()
			put()
		}
		stay = append(stay, pod)
		if random.IntN(10) == 0 {
			e.clock.Step(SweepInterval)
		}
		e.in.mu.Lock()
		clear(e.in.paused)
		e.in.mu.Unlock()
	}
	for _, pod := range stay {
		e.BoundOnce(pod)
	}
	e.Eventually("early pods are forgotten", func() error {
		e.clock.Step(fateKeptFor)
		e.in.mu.Lock()
		defer e.in.mu.Unlock()
		if len(e.in.early) > 0 {
			return fmt.Errorf("%d are not", len(e.in.early))
		}
		return nil
	})
	e.idle()
}
