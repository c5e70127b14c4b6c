package leader

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/backend/queue"
)

// repeatedEvents is a scheduling queue that processes the events of volumes, claims and devices again after each of
// delays. Each replica watches these objects itself. The leader may receive an event before the owners do, and retry
// a pod at once. The owners would reject the pod again, and the event would be used up. Comparing resource versions
// would not be enough: the plugins of an owner process an event some time after its informer has received it.
type repeatedEvents struct {
	queue.SchedulingQueue
	// leads returns whether this replica leads. The queues of others are empty.
	leads  func() bool
	delays []time.Duration

	mu sync.Mutex
	// waiting is the number of events to repeat. Beyond maxRepeated, all unschedulable pods are retried instead.
	waiting int
	// retrying are the delays after which all unschedulable pods will be retried. The value is true if they will be
	// retried twice, because another event has arrived since.
	retrying map[time.Duration]bool
}

// maxRepeated is the number of events that wait to be repeated.
const maxRepeated = 10_000

// repeatDelays are the times after which events are repeated: for the usual delay of a watch, and for a watch that
// was interrupted.
var repeatDelays = []time.Duration{time.Second, 10 * time.Second}

// watchedByAll are the resources that each replica watches itself, and that filters of owners read.
var watchedByAll = sets.New(
	fwk.PersistentVolume, fwk.PersistentVolumeClaim, fwk.StorageClass, fwk.CSINode, fwk.CSIDriver, fwk.CSIStorageCapacity,
	fwk.VolumeAttachment, fwk.ResourceClaim, fwk.ResourceSlice, fwk.DeviceClass,
)

// RepeatEvents returns a queue that repeats the events that the owners of nodes may receive later than the leader.
func (l *Leader) RepeatEvents(q queue.SchedulingQueue) queue.SchedulingQueue {
	leads := func() bool { return l.Term() > 0 && l.ctx.Err() == nil }
	return &repeatedEvents{SchedulingQueue: q, leads: leads, delays: repeatDelays, retrying: map[time.Duration]bool{}}
}

// MoveAllToActiveOrBackoffQueue processes an event, and repeats it later if it is about an object that each replica
// watches.
func (q *repeatedEvents) MoveAllToActiveOrBackoffQueue(logger klog.Logger, event fwk.ClusterEvent, before, after any, check queue.PreEnqueueCheck) {
	process := func() { q.SchedulingQueue.MoveAllToActiveOrBackoffQueue(logger, event, before, after, check) }
	process()
	if !watchedByAll.Has(event.Resource) || !q.leads() {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, delay := range q.delays {
		if q.waiting == maxRepeated {
			q.retryAllAfter(logger, delay)
			continue
		}
		q.waiting++
		time.AfterFunc(delay, func() {
			q.mu.Lock()
			q.waiting--
			q.mu.Unlock()
			if q.leads() {
				process()
			}
		})
	}
}

// retryAllAfter retries all unschedulable pods after a delay. The caller holds the lock.
func (q *repeatedEvents) retryAllAfter(logger klog.Logger, delay time.Duration) {
	_, scheduled := q.retrying[delay]
	q.retrying[delay] = scheduled
	if scheduled {
		return
	}
	time.AfterFunc(delay, func() {
		q.mu.Lock()
		again := q.retrying[delay]
		delete(q.retrying, delay)
		if again && q.leads() {
			q.retryAllAfter(logger, delay)
		}
		q.mu.Unlock()
		if q.leads() {
			retryAll(logger, q.SchedulingQueue)
		}
	})
}

// retryAll retries all unschedulable pods.
func retryAll(logger klog.Logger, q queue.SchedulingQueue) {
	q.MoveAllToActiveOrBackoffQueue(logger, fwk.ClusterEvent{Resource: fwk.WildCard, ActionType: fwk.All}, nil, nil, nil)
}
