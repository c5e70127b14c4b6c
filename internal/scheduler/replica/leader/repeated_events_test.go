package leader

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/backend/queue"
)

// countingQueue counts the events that it processes, by resource.
type countingQueue struct {
	queue.SchedulingQueue
	mu     sync.Mutex
	counts map[fwk.EventResource]int
}

func (q *countingQueue) MoveAllToActiveOrBackoffQueue(_ klog.Logger, event fwk.ClusterEvent, _, _ any, _ queue.PreEnqueueCheck) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.counts[event.Resource]++
}

// TestEventsAreRepeated checks which events are processed again, and that all pods are retried for events beyond the
// bound.
func TestEventsAreRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counting := &countingQueue{counts: map[fwk.EventResource]int{}}
		var leads atomic.Bool
		leads.Store(true)
		q := &repeatedEvents{SchedulingQueue: counting, leads: leads.Load, delays: repeatDelays, retrying: map[time.Duration]bool{}}
		send := func(resource fwk.EventResource, times int) {
			for range times {
				q.MoveAllToActiveOrBackoffQueue(klog.Logger{}, fwk.ClusterEvent{Resource: resource, ActionType: fwk.Add}, nil, nil, nil)
			}
		}
		expect := func(after string, want map[fwk.EventResource]int) {
			t.Helper()
			time.Sleep(2 * repeatDelays[len(repeatDelays)-1])
			synctest.Wait()
			for resource, n := range want {
				if got := counting.counts[resource]; got != n {
					t.Errorf("after %s: %d events of %s were processed, want %d", after, got, resource, n)
				}
			}
			clear(counting.counts)
		}
		send(fwk.ResourceSlice, 1)
		send(fwk.Node, 1)
		expect("one event each", map[fwk.EventResource]int{fwk.ResourceSlice: 3, fwk.Node: 1, fwk.WildCard: 0})
		const beyond = 5
		send(fwk.ResourceClaim, maxRepeated/2+beyond)
		// The first event beyond the bound schedules a retry after each delay, and the next ones a second retry.
		expect("more events than the bound", map[fwk.EventResource]int{fwk.ResourceClaim: maxRepeated/2 + beyond + maxRepeated, fwk.WildCard: 4})
		send(fwk.ResourceSlice, 1)
		leads.Store(false)
		send(fwk.ResourceSlice, 1)
		expect("the end of the leadership", map[fwk.EventResource]int{fwk.ResourceSlice: 2})
		if q.waiting != 0 || len(q.retrying) != 0 {
			t.Errorf("%d events and %d retries wait, want none", q.waiting, len(q.retrying))
		}
	})
}
