// Package intake adds early pods to the scheduling queue: pods that a webhook delivers before the watch
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
	"k8s.io/apimachinery/pkg/util/sets"
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
	// maxEarly is the maximal number of early pods. Further pods are added when the watch shows them.
	// One namespace may have as many early pods as there is room left: half of all if it is the only
	// one, a third each if there are two. So there is always room for pods of a further namespace.
	maxEarly = 10_000
	// maxEarlyBytes is the maximal size of all early pods, as encoded. A pod can be larger than 1 MiB. Namespaces share it
	// like maxEarly.
	maxEarlyBytes = 64 << 20
	// A pod whose bind waits is requested from the API server when it is firstGetAfter old, and again
	// when it is secondGetAfter old, because it may not be stored at the first request.
	firstGetAfter     = time.Second
	secondGetAfter    = 3 * time.Second
	maxConcurrentGets = 256
	getTimeout        = 2 * time.Second
	// EarlyExpiry is the age at which an unconfirmed early pod is removed from the queue and the cache.
	EarlyExpiry = 10 * time.Second
	// fateKeptFor is the time for which the fate of a pod is kept, because a scheduling or binding
	// cycle of the pod may still run.
	fateKeptFor = time.Minute
	// namespacePause is the time for which the intake ignores pods of a namespace from the webhook,
	// after a pod of the namespace was not stored. Until they expire, pods that are never stored
	// take capacity from others.
	namespacePause = 10 * time.Second
	// SweepInterval is the interval between checks of all early pods.
	SweepInterval = 200 * time.Millisecond
)

var (
	errNotStored = errors.New("the webhook delivered the pod, but the API server did not store it")
	errChanged   = errors.New("the stored pod differs from the pod that the webhook delivered")
)

// Intake adds pods to the scheduling queue before they are known to be stored. Such an early pod is
// scheduled like any other, with these differences:
//
//   - Its bind, and every earlier effect outside the scheduler, waits until the pod is known to be
//     stored: from the watch, or from a request to the API server if the watch is slow.
//   - It preempts no other pod.
//   - If its scheduling fails before the watch shows it, or if it is never stored, it is removed from
//     the queue and the cache without an event or a condition. If it is stored later, the watch adds
//     it again.
//
// The watch takes precedence over the webhook. Pods that the webhook does not deliver are added when the
// watch shows them.
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

	// mu is held during calls of the queue, so that the queue and the early pods are consistent.
	mu    sync.Mutex
	early map[types.UID]*early
	// all is the usage of all early pods, and perNamespace that of each namespace.
	all          usage
	perNamespace map[string]usage
	// names are the early pods whose fate is unsettled, by name.
	names map[types.NamespacedName]*early
	// pending are the names of the pending pods that the watch has shown, by UID.
	pending map[types.UID]types.NamespacedName
	// paused has, by namespace, the time until which the intake ignores pods from the webhook.
	paused map[string]time.Time
	// getsInFlight is the number of requests for pods to the API server.
	getsInFlight int
}

// usage is a number of early pods and their size in bytes.
type usage struct{ pods, bytes int }

// plus returns the sum of two usages.
func (u usage) plus(other usage) usage { return usage{u.pods + other.pods, u.bytes + other.bytes} }

// early is an early pod: the webhook delivered it, and the watch has not shown it yet.
type early struct {
	pod *v1.Pod
	// bytes is the size of the pod.
	bytes int
	since time.Time
	fate  fate
	// settled is closed when the fate is first set. settledAt is the time at which it was last set.
	settled   chan struct{}
	settledAt time.Time
	// binding is true after a binding cycle has started to wait until the pod is stored.
	binding bool
	// getInFlight is true while a request for the pod to the API server is in progress.
	getInFlight bool
	// notFound is the number of requests to which the API server answered that the pod does not
	// exist.
	notFound int
	// real is a pod that the watch has shown with the UID of this one and another name; nil if there is none. It
	// waits until no cycle of this one runs, because the queue identifies the pods of running cycles by UID.
	real *v1.Pod
}

// fate is the knowledge whether an early pod is stored.
type fate int

const (
	unsettled fate = iota
	// stored: the API server has the pod.
	stored
	// gone: the pod was deleted, bound or discarded, or its scheduling failed.
	gone
	// changed: the stored pod differs from the delivered one.
	changed
)

// Attach wraps the queue, the frameworks and the failure handler of a scheduler with an intake. It must be
// called after [attach.Attach] and before the scheduler is started. Until [Intake.Take] is called, the
// intake only counts pods.
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
		early: map[types.UID]*early{}, perNamespace: map[string]usage{}, names: map[types.NamespacedName]*early{}, pending: map[types.UID]types.NamespacedName{}, paused: map[string]time.Time{},
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

// Remembered returns the number of early pods, and the number of those whose fate is unsettled.
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

// SetClock replaces the clock. It must be called before the scheduler is started.
func (in *Intake) SetClock(clock clock.WithTicker) { in.clock = clock }

// Leads returns a channel that is closed when the scheduler starts to schedule.
func (in *Intake) Leads() <-chan struct{} { return in.leads }

// Take adds a pod that the webhook delivered. The caller must not use the pod afterwards.
func (in *Intake) Take(pod *v1.Pod) {
	pod.ResourceVersion = ""
	in.trim(pod)
	if reason := in.take(pod, pod.Size()); reason != "" {
		CountDropped(reason)
	}
}

// take adds a pod of the given size to the queue, or returns the reason for which the pod is left to the watch.
func (in *Intake) take(pod *v1.Pod, bytes int) (reason string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	now, of := in.clock.Now(), in.perNamespace[pod.Namespace]
	switch {
	case pod.UID == "" || pod.Name == "" || pod.Namespace == "" || pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil || !in.handles(pod.Spec.SchedulerName):
		return dropForeign
	case !in.leading():
		return dropNotLeading
	case len(in.early) >= maxEarly, in.all.bytes+bytes > maxEarlyBytes:
		return dropOverload
	case of.pods >= maxEarly-len(in.early), of.bytes+bytes > maxEarlyBytes-in.all.bytes:
		return dropShare
	case in.paused[pod.Namespace].After(now):
		return dropNamespace
	case in.exists(pod):
		return dropExists
	}
	e := &early{pod: pod, bytes: bytes, since: now, settled: make(chan struct{})}
	in.early[pod.UID], in.names[cache.NameOf(pod)] = e, e
	in.count(e, usage{1, bytes})
	in.recordTaken(pod, sourceWebhook, now)
	earlyPods.Set(float64(len(in.early)))
	in.queue.Add(context.Background(), pod)
	return ""
}

// leading returns whether the scheduler has started to schedule.
func (in *Intake) leading() bool {
	select {
	case <-in.leads:
		return true
	default:
		return false
	}
}

// exists returns whether the intake or the informer has the pod, or another pod with its name or its UID. The queue
// identifies waiting pods by name and pods of running cycles by UID, so two pods with one name or one UID must not be
// in the queue. A caller of the webhook may send any UID.
func (in *Intake) exists(pod *v1.Pod) bool {
	if in.early[pod.UID] != nil || in.names[cache.NameOf(pod)] != nil || in.pending[pod.UID].Name != "" {
		return true
	}
	_, err := in.pods.Pods(pod.Namespace).Get(pod.Name)
	return err == nil
}

// handleAdd handles a pod that the watch shows for the first time.
func (in *Intake) handleAdd(ctx context.Context, pod *v1.Pod) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.pending[pod.UID] = cache.NameOf(pod)
	e := in.early[pod.UID]
	if e != nil && cache.NameOf(e.pod) == cache.NameOf(pod) {
		in.confirm(ctx, e, pod)
		return
	}
	if other := in.names[cache.NameOf(pod)]; other != nil {
		// The other pod was not stored, or was already deleted.
		in.discard(klog.FromContext(ctx), other, expiredAbsent)
	}
	in.recordTaken(pod, sourceWatch, in.clock.Now())
	if e != nil {
		in.replaceForged(ctx, e, pod)
		return
	}
	in.queue.Add(ctx, pod)
}

// replaceForged replaces an early pod by the pod that the watch shows with its UID and another name. The API server
// never gives one UID to two pods, so the early pod was not stored.
func (in *Intake) replaceForged(ctx context.Context, e *early, pod *v1.Pod) {
	if e.fate == unsettled {
		in.discard(klog.FromContext(ctx), e, expiredAbsent)
	}
	e.real = pod
	in.addReal(ctx, e, in.inFlight())
}

// inFlight returns the UIDs of the pods of running cycles.
func (in *Intake) inFlight() sets.Set[types.UID] {
	uids := sets.New[types.UID]()
	for _, pod := range in.queue.InFlightPods() {
		uids.Insert(pod.UID)
	}
	return uids
}

// addReal adds the pod to the queue that waits for the end of a cycle of an early pod, if none is in flight. Otherwise
// the queue would discard it.
func (in *Intake) addReal(ctx context.Context, e *early, inFlight sets.Set[types.UID]) {
	if e.real == nil || inFlight.Has(e.real.UID) {
		return
	}
	in.forget(e)
	in.queue.Add(ctx, e.real)
	e.real = nil
}

// confirm replaces an early pod by the version that the watch shows.
func (in *Intake) confirm(ctx context.Context, e *early, pod *v1.Pod) {
	now := in.clock.Now()
	leadTime.Observe(now.Sub(e.since).Seconds())
	if e.fate == stored {
		// A request to the API server has confirmed the pod, so its bind is in progress.
		in.forget(e)
		return
	}
	confirmations.WithLabelValues(byWatch).Inc()
	// If the pod is in the queue, Update replaces it. If the pod is in a scheduling cycle, Update
	// does not change it. Otherwise, for example after it was discarded, Update adds it.
	in.queue.Update(ctx, e.pod, pod)
	switch {
	case e.fate != unsettled:
		in.forget(e)
	case samePod(e.pod, pod):
		in.settle(e, stored, now)
		in.forget(e)
	default:
		// A running cycle of the delivered version will fail.
		in.settle(e, changed, now)
	}
}

// handleUpdate handles a new version of a pod from the watch. If the two have different UIDs, the watch has missed the
// deletion of the first.
func (in *Intake) handleUpdate(ctx context.Context, oldPod, newPod *v1.Pod) {
	in.mu.Lock()
	defer in.mu.Unlock()
	recreated := oldPod.UID != newPod.UID
	if recreated {
		in.forgetPending(oldPod)
		in.pending[newPod.UID] = cache.NameOf(newPod)
	}
	e := in.early[newPod.UID]
	switch {
	case e != nil && e.real != nil:
		e.real = newPod
	case e != nil && recreated && cache.NameOf(e.pod) != cache.NameOf(newPod):
		in.queue.Delete(klog.FromContext(ctx), oldPod)
		in.replaceForged(ctx, e, newPod)
	case e != nil && recreated && e.fate != changed:
		// The early pod has replaced another pod with the same name in one update.
		in.confirm(ctx, e, newPod)
	default:
		in.queue.Update(ctx, oldPod, newPod)
	}
}

// handleDelete handles a pod that was deleted or bound.
func (in *Intake) handleDelete(logger klog.Logger, pod *v1.Pod) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.forgetPending(pod)
	in.queue.Delete(logger, pod)
	if e := in.early[pod.UID]; e != nil {
		in.settle(e, gone, in.clock.Now())
	}
}

// forgetPending forgets a pod that is no longer pending, and that may wait for the end of a cycle of an early pod.
func (in *Intake) forgetPending(pod *v1.Pod) {
	delete(in.pending, pod.UID)
	if e := in.early[pod.UID]; e != nil {
		e.real = nil
	}
}

// settle sets the fate of an early pod and wakes the binding cycle that waits for it.
func (in *Intake) settle(e *early, fate fate, now time.Time) {
	if e.fate == unsettled {
		close(e.settled)
	}
	e.fate, e.settledAt = fate, now
	if name := cache.NameOf(e.pod); in.names[name] == e {
		delete(in.names, name)
	}
}

// forget removes an early pod from the intake, but not from the queue.
func (in *Intake) forget(e *early) {
	if in.early[e.pod.UID] == e {
		delete(in.early, e.pod.UID)
		in.count(e, usage{-1, -e.bytes})
	}
	if name := cache.NameOf(e.pod); in.names[name] == e {
		delete(in.names, name)
	}
	earlyPods.Set(float64(len(in.early)))
}

// count changes the usage of all early pods and of the namespace of one.
func (in *Intake) count(e *early, change usage) {
	in.all = in.all.plus(change)
	of := in.perNamespace[e.pod.Namespace].plus(change)
	if of.pods == 0 {
		delete(in.perNamespace, e.pod.Namespace)
	} else {
		in.perNamespace[e.pod.Namespace] = of
	}
}

// discard removes an early pod from the queue because it was not stored. A running cycle of the pod will
// fail.
func (in *Intake) discard(logger klog.Logger, e *early, reason string) {
	expired.WithLabelValues(reason).Inc()
	in.settle(e, gone, in.clock.Now())
	in.queue.Delete(logger, e.pod)
}

// awaitStored waits until a pod is known to be stored. It returns an error if the pod must not be bound.
func (in *Intake) awaitStored(ctx context.Context, pod *v1.Pod) error {
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

// unconfirmed returns whether a pod is an early pod that is not known to be stored.
func (in *Intake) unconfirmed(pod *v1.Pod) bool {
	if pod.ResourceVersion != "" {
		return false
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	e := in.early[pod.UID]
	return e != nil && e.fate != stored
}

// handleFailure handles a failed scheduling attempt. It returns true if the pod is an early pod that is now
// left to the watch, and false if upstream's handler must handle it.
func (in *Intake) handleFailure(pod *v1.Pod) bool {
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
		// The watch has shown the pod, so upstream's handler handles it.
		return false
	case unsettled, stored:
		returned.Inc()
		in.settle(e, gone, in.clock.Now())
	}
	in.queue.Done(pod.UID)
	in.addReal(context.Background(), e, nil)
	return true
}

// samePod returns whether two versions of a pod are equal in all fields that plugins read.
func samePod(a, b *v1.Pod) bool {
	return equality.Semantic.DeepEqual(a.Spec, b.Spec) && equality.Semantic.DeepEqual(a.Labels, b.Labels) &&
		equality.Semantic.DeepEqual(a.Annotations, b.Annotations) && equality.Semantic.DeepEqual(a.OwnerReferences, b.OwnerReferences)
}
