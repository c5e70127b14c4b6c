package intake

import (
	"context"
	"errors"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/klog/v2"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/backend/queue"
	"k8s.io/utils/clock"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/attach"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
)

const (
	// Pods that are remembered because it is not settled whether they are stored. What
	// comes beyond is left to the watch.
	mostEarly = 10_000
	// A pod whose bind has waited so long is asked for, and once more after the second
	// time: it may be on its way. At most so many are asked for at a time.
	earlyPatience = time.Second
	lastPatience  = 3 * time.Second
	mostAsked     = 256
	askTimeout    = 2 * time.Second
	// A pod that nobody has seen for so long leaves queue and cache.
	EarlyExpiry = 10 * time.Second
	// What became of a pod is remembered for a scheduling cycle that may still work on
	// it.
	earlyMemory = time.Minute
	// A namespace with a pod that was never stored is left to the watch for so long: its
	// pods only take room from others.
	namespaceRest = 10 * time.Second
	SweepInterval = 200 * time.Millisecond
)

var (
	errNotStored = errors.New("the pod was handed over before it was stored, and never was")
	errChanged   = errors.New("the pod was stored otherwise than it was handed over")
)

// Intake takes pods into the scheduling queue before they are stored. Such an early
// pod is queued and placed like any other, but:
//
//   - its bind, and all before it that others can see, waits until the pod is known to
//     be stored: by the watch, or by asking when the watch takes its time;
//   - it evicts nobody;
//   - if it fails before the watch has shown it, or was never stored, it leaves queue
//     and cache through upstream's failure handling, nobody is told, and the watch
//     brings it again if it is there after all.
//
// What the watch shows wins. Pods that nobody handed over come by the watch as ever.
type Intake struct {
	queue   queue.SchedulingQueue
	pods    corelisters.PodLister
	ask     func(ctx context.Context, namespace, name string) (*v1.Pod, error)
	handles func(schedulerName string) bool
	trim    func(*v1.Pod)
	clock   clock.WithTicker
	started time.Time

	leads     chan struct{}
	stop      chan struct{}
	startOnce sync.Once
	stopOnce  sync.Once

	// The lock is held while the queue is told, so that both agree.
	mu    sync.Mutex
	early map[types.UID]*early
	// names of early pods of which it is not settled whether they are stored.
	names   map[types.NamespacedName]*early
	resting map[string]time.Time
	asking  int
}

// early is a pod that was handed over and that the watch has not shown yet.
type early struct {
	pod   *v1.Pod
	since time.Time
	fate  fate
	// settled is closed when the fate is known, at the time after it.
	settled   chan struct{}
	settledAt time.Time
	// binding says that a bind waits; asking, that the API server is being asked; asked,
	// how often it has said that the pod is not there.
	binding, asking bool
	asked           int
}

type fate int

const (
	unsettled fate = iota
	// stored, says the API server.
	stored
	// gone before it was stored or bound.
	gone
	// changed: what is stored is not what was handed over.
	changed
)

// AttachIntake puts an intake before the queue of a scheduler that has not been started
// yet, after [Attach]. Until something is handed over, it only counts.
func Attach(
	sched *kubescheduler.Scheduler, profiles []config.KubeSchedulerProfile, factory informers.SharedInformerFactory, client kubernetes.Interface,
) *Intake {
	registerMetrics()
	in := &Intake{
		queue: sched.SchedulingQueue, pods: factory.Core().V1().Pods().Lister(),
		ask: func(ctx context.Context, namespace, name string) (*v1.Pod, error) {
			return client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		handles: sched.Profiles.HandlesSchedulerName, trim: func(*v1.Pod) {}, clock: clock.RealClock{}, started: time.Now(),
		leads: make(chan struct{}), stop: make(chan struct{}),
		early: map[types.UID]*early{}, names: map[types.NamespacedName]*early{}, resting: map[string]time.Time{},
	}
	if attach.CanTrim(sched, profiles) {
		t := cache.NewTrimmer()
		in.trim = func(pod *v1.Pod) { _, _ = t.Transform(pod) }
	}
	sched.SchedulingQueue = intakeQueue{in.queue, in}
	for name, fw := range sched.Profiles {
		sched.Profiles[name] = earlyFramework{fw, in}
	}
	handle := sched.FailureHandler
	sched.FailureHandler = in.failureHandler(handle)
	return in
}

// Remembered returns how many early pods are remembered, and for how many of them it is not
// settled whether they are stored.
func (in *Intake) Remembered() (pods, open int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, e := range in.early {
		if e.fate == unsettled {
			open++
		}
	}
	return len(in.early), open
}

// SetClock replaces the clock; it is called before the scheduler starts.
func (in *Intake) SetClock(clock clock.WithTicker) { in.clock = clock }

// Leads is closed when the scheduler begins to schedule.
func (in *Intake) Leads() <-chan struct{} { return in.leads }

// Take hands over a pod that may be stored soon. The pod is the intake's from then on.
func (in *Intake) Take(pod *v1.Pod) {
	pod.ResourceVersion = ""
	in.trim(pod)
	if reason := in.take(pod); reason != "" {
		Drop(reason)
	}
}

// take returns why a pod is left to the watch, if it is.
func (in *Intake) take(pod *v1.Pod) (reason string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	now := in.clock.Now()
	switch {
	case pod.UID == "" || pod.Name == "" || pod.Namespace == "" || pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil || !in.handles(pod.Spec.SchedulerName):
		return dropForeign
	case !in.leading():
		return dropNotLeading
	case len(in.early) >= mostEarly:
		return dropOverload
	case in.resting[pod.Namespace].After(now):
		return dropNamespace
	case in.known(pod):
		return dropKnown
	}
	e := &early{pod: pod, since: now, settled: make(chan struct{})}
	in.early[pod.UID], in.names[cache.NameOf(pod)] = e, e
	in.observe(pod, sourceWebhook, now)
	earlyPods.Set(float64(len(in.early)))
	in.queue.Add(context.Background(), pod)
	return ""
}

func (in *Intake) leading() bool {
	select {
	case <-in.leads:
		return true
	default:
		return false
	}
}

// known says whether there is a pod of that name: this one, if the watch was first, or
// another that has to go before. The queue knows pods by their names.
func (in *Intake) known(pod *v1.Pod) bool {
	if in.early[pod.UID] != nil || in.names[cache.NameOf(pod)] != nil {
		return true
	}
	_, err := in.pods.Pods(pod.Namespace).Get(pod.Name)
	return err == nil
}

// seen is told of a pod that the watch shows for the first time.
func (in *Intake) seen(ctx context.Context, pod *v1.Pod) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if e := in.early[pod.UID]; e != nil {
		in.confirm(ctx, e, pod)
		return
	}
	if other := in.names[cache.NameOf(pod)]; other != nil {
		// That was refused, or has been deleted already.
		in.discard(klog.FromContext(ctx), other, expiredAbsent)
	}
	in.observe(pod, sourceWatch, in.clock.Now())
	in.queue.Add(ctx, pod)
}

// confirm takes the watch's version of an early pod.
func (in *Intake) confirm(ctx context.Context, e *early, pod *v1.Pod) {
	now := in.clock.Now()
	leadTime.Observe(now.Sub(e.since).Seconds())
	if e.fate == stored {
		// Its bind is on the way.
		in.forget(e)
		return
	}
	confirmations.WithLabelValues(byWatch).Inc()
	// In the queue it is replaced, in flight it is left alone, and otherwise, as after
	// it was discarded, it is added.
	in.queue.Update(ctx, e.pod, pod)
	switch {
	case e.fate != unsettled:
		in.forget(e)
	case samePod(e.pod, pod):
		in.settle(e, stored, now)
		in.forget(e)
	default:
		// Whoever works with the old version finds out.
		in.settle(e, changed, now)
	}
}

// updated is told of a change that the watch shows.
func (in *Intake) updated(ctx context.Context, oldPod, newPod *v1.Pod) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if e := in.early[newPod.UID]; e != nil && e.fate != changed && oldPod.UID != newPod.UID {
		// It has taken the place of another of its name unseen.
		in.confirm(ctx, e, newPod)
		return
	}
	in.queue.Update(ctx, oldPod, newPod)
}

// deleted is told that a pod is gone, or has a node.
func (in *Intake) deleted(logger klog.Logger, pod *v1.Pod) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.queue.Delete(logger, pod)
	if e := in.early[pod.UID]; e != nil {
		in.settle(e, gone, in.clock.Now())
	}
}

// settle says what became of an early pod, to those who wait.
func (in *Intake) settle(e *early, fate fate, now time.Time) {
	if e.fate == unsettled {
		close(e.settled)
	}
	e.fate, e.settledAt = fate, now
	if name := cache.NameOf(e.pod); in.names[name] == e {
		delete(in.names, name)
	}
}

func (in *Intake) forget(e *early) {
	delete(in.early, e.pod.UID)
	if name := cache.NameOf(e.pod); in.names[name] == e {
		delete(in.names, name)
	}
	earlyPods.Set(float64(len(in.early)))
}

// discard takes an early pod out of the queue; a cycle that works on it fails.
func (in *Intake) discard(logger klog.Logger, e *early, reason string) {
	expired.WithLabelValues(reason).Inc()
	in.settle(e, gone, in.clock.Now())
	in.queue.Delete(logger, e.pod)
}

// await waits until a pod that is about to be bound is stored.
func (in *Intake) await(ctx context.Context, pod *v1.Pod) error {
	if pod.ResourceVersion != "" {
		return nil
	}
	in.mu.Lock()
	e := in.early[pod.UID]
	if e == nil {
		in.mu.Unlock()
		return nil
	}
	e.binding = true
	in.mu.Unlock()
	select {
	case <-e.settled:
	case <-ctx.Done():
		return ctx.Err()
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	switch e.fate {
	case gone:
		return errNotStored
	case changed:
		return errChanged
	}
	return nil
}

// unconfirmed says whether it is still open whether a pod is stored.
func (in *Intake) unconfirmed(pod *v1.Pod) bool {
	if pod.ResourceVersion != "" {
		return false
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	e := in.early[pod.UID]
	return e != nil && e.fate != stored
}

// failed says that a try of a pod has failed that is to be left to the watch.
func (in *Intake) failed(pod *v1.Pod) bool {
	if pod.ResourceVersion != "" {
		return false
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	e := in.early[pod.UID]
	if e == nil {
		return false
	}
	in.forget(e)
	switch e.fate {
	case changed:
		// The watch has shown it, so upstream knows what to do.
		return false
	case unsettled, stored:
		returned.Inc()
		in.settle(e, gone, in.clock.Now())
	}
	in.queue.Done(pod.UID)
	return true
}

// samePod says whether two versions are the same to plugins.
func samePod(a, b *v1.Pod) bool {
	return equality.Semantic.DeepEqual(a.Spec, b.Spec) && equality.Semantic.DeepEqual(a.Labels, b.Labels) &&
		equality.Semantic.DeepEqual(a.Annotations, b.Annotations) && equality.Semantic.DeepEqual(a.OwnerReferences, b.OwnerReferences)
}
