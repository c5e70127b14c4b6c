// Package intake takes pods into the scheduling queue that a webhook delivers before the watch
// does.
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

// Bounds and times of early pods.
const (
	// maxEarly is the maximum number of early pods. The scheduler learns of further pods from the watch.
	maxEarly = 10_000
	// A pod whose bind waits is requested from the API server when it is firstGetAfter old, and again
	// when it is secondGetAfter old, because it may not be stored at the first request.
	firstGetAfter     = time.Second
	secondGetAfter    = 3 * time.Second
	maxConcurrentGets = 256
	getTimeout        = 2 * time.Second
	// EarlyExpiry is the age at which an unconfirmed early pod is removed from the queue and the cache.
	EarlyExpiry = 10 * time.Second
	// The fate of a pod is kept this long, because a scheduling cycle may still work on the pod.
	fateKeptFor = time.Minute
	// After a pod that was never stored, pods of its namespace are taken from the watch only for this
	// long, because pods that are never stored take capacity from others.
	namespacePause = 10 * time.Second
	// SweepInterval is how often early pods are checked.
	SweepInterval = 200 * time.Millisecond
)

var (
	errNotStored = errors.New("the pod was delivered by the webhook and never stored")
	errChanged   = errors.New("the stored pod differs from the one delivered by the webhook")
)

// Intake takes pods into the scheduling queue before they are stored. Such an early pod is
// scheduled like any other, with these differences:
//
//   - Its bind, and every effect before the bind that others can see, waits until the pod is
//     known to be stored: by the watch, or by a request to the API server if the watch is slow.
//   - It preempts no other pod.
//   - If it fails before the watch shows it, or is never stored, it leaves the queue and the
//     cache through upstream's failure handler without an event or a condition. The watch adds
//     it again if it was stored after all.
//
// What the watch shows takes precedence. Pods that the webhook did not deliver come by the watch.
type Intake struct {
	queue   queue.SchedulingQueue
	pods    corelisters.PodLister
	getPod  func(ctx context.Context, namespace, name string) (*v1.Pod, error)
	handles func(schedulerName string) bool
	trim    func(*v1.Pod)
	clock   clock.WithTicker
	started time.Time

	leads     chan struct{}
	stop      chan struct{}
	startOnce sync.Once
	stopOnce  sync.Once

	// mu is held during calls of the queue, so that the queue and the early pods agree.
	mu    sync.Mutex
	early map[types.UID]*early
	// names are the early pods for which it is not settled whether they are stored.
	names map[types.NamespacedName]*early
	// paused maps namespaces to the time until which their pods are taken from the watch only.
	paused       map[string]time.Time
	getsInFlight int
}

// early is a pod that the webhook delivered and the watch has not shown.
type early struct {
	pod   *v1.Pod
	since time.Time
	fate  fate
	// settled is closed when the fate is set, which happens at settledAt.
	settled   chan struct{}
	settledAt time.Time
	// binding is set while a bind waits for the pod to be stored.
	binding bool
	// getInFlight is set while the pod is requested from the API server.
	getInFlight bool
	// notFound counts the requests to which the API server answered that the pod does not exist.
	notFound int
}

type fate int

const (
	unsettled fate = iota
	// stored: the API server has the pod.
	stored
	// gone: the pod was deleted, or given up, before it was stored or bound.
	gone
	// changed: the stored pod differs from the delivered one.
	changed
)

// Attach puts an intake in front of the queue of a scheduler, after [attach.Attach] and before the
// scheduler is started. Until a pod is delivered it only counts pods.
func Attach(
	sched *kubescheduler.Scheduler, profiles []config.KubeSchedulerProfile, factory informers.SharedInformerFactory, client kubernetes.Interface,
) *Intake {
	registerMetrics()
	in := &Intake{
		queue: sched.SchedulingQueue, pods: factory.Core().V1().Pods().Lister(),
		getPod: func(ctx context.Context, namespace, name string) (*v1.Pod, error) {
			return client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		handles: sched.Profiles.HandlesSchedulerName, trim: func(*v1.Pod) {}, clock: clock.RealClock{}, started: time.Now(),
		leads: make(chan struct{}), stop: make(chan struct{}),
		early: map[types.UID]*early{}, names: map[types.NamespacedName]*early{}, paused: map[string]time.Time{},
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

// Remembered returns the number of early pods, and for how many of them it is not settled whether
// they are stored.
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

// SetClock replaces the clock. It has to be called before the scheduler is started.
func (in *Intake) SetClock(clock clock.WithTicker) { in.clock = clock }

// Leads returns a channel that is closed when the scheduler starts to schedule.
func (in *Intake) Leads() <-chan struct{} { return in.leads }

// Take delivers a pod that may be stored soon. The intake owns the pod afterwards.
func (in *Intake) Take(pod *v1.Pod) {
	pod.ResourceVersion = ""
	in.trim(pod)
	if reason := in.take(pod); reason != "" {
		Drop(reason)
	}
}

// take queues a pod, or returns why it is left to the watch.
func (in *Intake) take(pod *v1.Pod) (reason string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	now := in.clock.Now()
	switch {
	case pod.UID == "" || pod.Name == "" || pod.Namespace == "" || pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil || !in.handles(pod.Spec.SchedulerName):
		return dropForeign
	case !in.leading():
		return dropNotLeading
	case len(in.early) >= maxEarly:
		return dropOverload
	case in.paused[pod.Namespace].After(now):
		return dropNamespace
	case in.exists(pod):
		return dropExists
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

// exists returns whether a pod of that name exists: the same pod, if the watch was first, or another
// that has to be deleted first. The queue identifies pods by name.
func (in *Intake) exists(pod *v1.Pod) bool {
	if in.early[pod.UID] != nil || in.names[cache.NameOf(pod)] != nil {
		return true
	}
	_, err := in.pods.Pods(pod.Namespace).Get(pod.Name)
	return err == nil
}

// seen handles a pod that the watch shows for the first time.
func (in *Intake) seen(ctx context.Context, pod *v1.Pod) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if e := in.early[pod.UID]; e != nil {
		in.confirm(ctx, e, pod)
		return
	}
	if other := in.names[cache.NameOf(pod)]; other != nil {
		// The other pod was refused, or is deleted already.
		in.discard(klog.FromContext(ctx), other, expiredAbsent)
	}
	in.observe(pod, sourceWatch, in.clock.Now())
	in.queue.Add(ctx, pod)
}

// confirm replaces an early pod by the version of the watch.
func (in *Intake) confirm(ctx context.Context, e *early, pod *v1.Pod) {
	now := in.clock.Now()
	leadTime.Observe(now.Sub(e.since).Seconds())
	if e.fate == stored {
		// Its bind is on the way.
		in.forget(e)
		return
	}
	confirmations.WithLabelValues(byWatch).Inc()
	// A pod in the queue is replaced, a pod in flight is left alone, and otherwise, for example
	// after it was discarded, it is added.
	in.queue.Update(ctx, e.pod, pod)
	switch {
	case e.fate != unsettled:
		in.forget(e)
	case samePod(e.pod, pod):
		in.settle(e, stored, now)
		in.forget(e)
	default:
		// A cycle that works with the old version fails.
		in.settle(e, changed, now)
	}
}

// updated handles an update of the watch.
func (in *Intake) updated(ctx context.Context, oldPod, newPod *v1.Pod) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if e := in.early[newPod.UID]; e != nil && e.fate != changed && oldPod.UID != newPod.UID {
		// The early pod has replaced another of its name in one update.
		in.confirm(ctx, e, newPod)
		return
	}
	in.queue.Update(ctx, oldPod, newPod)
}

// deleted handles a pod that was deleted or bound.
func (in *Intake) deleted(logger klog.Logger, pod *v1.Pod) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.queue.Delete(logger, pod)
	if e := in.early[pod.UID]; e != nil {
		in.settle(e, gone, in.clock.Now())
	}
}

// settle sets the fate of an early pod and wakes those that wait for it.
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

// discard removes an early pod from the queue. A cycle that works on it fails.
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

// unconfirmed returns whether it is not known yet that a pod is stored.
func (in *Intake) unconfirmed(pod *v1.Pod) bool {
	if pod.ResourceVersion != "" {
		return false
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	e := in.early[pod.UID]
	return e != nil && e.fate != stored
}

// failed handles a failed scheduling attempt. It returns true if the pod was an early pod that is
// left to the watch.
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
		// The watch has shown it, so upstream's handler takes it.
		return false
	case unsettled, stored:
		returned.Inc()
		in.settle(e, gone, in.clock.Now())
	}
	in.queue.Done(pod.UID)
	return true
}

// samePod returns whether plugins cannot distinguish two versions of a pod.
func samePod(a, b *v1.Pod) bool {
	return equality.Semantic.DeepEqual(a.Spec, b.Spec) && equality.Semantic.DeepEqual(a.Labels, b.Labels) &&
		equality.Semantic.DeepEqual(a.Annotations, b.Annotations) && equality.Semantic.DeepEqual(a.OwnerReferences, b.OwnerReferences)
}
