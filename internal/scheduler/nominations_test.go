package scheduler

import (
	"testing"
	"time"

	"k8s.io/klog/v2"
	st "k8s.io/kubernetes/pkg/scheduler/testing"
)

// TestNominationsAreForgotten: nodes whose nominated pods have gone are not asked for
// ever, or pods would be left to upstream's search long after a preemption.
func TestNominationsAreForgotten(t *testing.T) {
	l := newScripted(t, newAPI())
	pod := st.MakePod().Name("waits").UID("waits").Namespace("default").SchedulerName("default-scheduler").NominatedNodeName("n").Obj()
	l.must(l.informers.Core().V1().Pods().Informer().GetIndexer().Add(pod))
	queue := l.ranker.nominations
	queue.Add(l.ctx, pod)
	if places := queue.places(); len(places) != 1 || places[0] != "n" {
		t.Fatalf("the nodes with nominated pods are %v", places)
	}
	queue.prune = time.Time{}
	if places := queue.places(); len(places) != 1 {
		t.Errorf("a node was forgotten that has a nominated pod")
	}
	queue.Delete(klog.Background(), pod)
	queue.prune = time.Time{}
	if places := queue.places(); len(places) != 0 {
		t.Errorf("nobody is nominated, and yet to %v", places)
	}
}
