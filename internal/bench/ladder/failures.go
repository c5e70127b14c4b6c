package ladder

import (
	"context"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/nodesim"
)

// showEvery is the time between two lines of the display if nothing changes. A grace period can be half an hour.
const showEvery = 30 * time.Second

// failures has how many seconds nodes took to become NotReady after they were stopped, and Ready after they were
// started again. Both are sorted.
type failures struct {
	stopped         int
	notReady, ready []float64
}

// fail stops nodes, waits until they are NotReady, starts them, and waits until they are Ready.
func (s *step) fail(ctx context.Context) (f failures, err error) {
	f.stopped = min(s.options.Stopped.N, s.rung.nodes)
	var names []string
	for i := range f.stopped {
		names = append(names, bulk.Range{Prefix: bulk.NodePrefix}.Name(i*s.rung.nodes/f.stopped))
	}
	s.mark("nodes stop")
	// The last renewal may have been just now. kube-controller-manager then looks after the grace period, and a pass
	// over all nodes takes up to a period.
	limit := s.grace + 2*s.period + s.interval
	if f.notReady, err = s.change(ctx, nodesim.Stop, names, false, limit); err != nil {
		return f, err
	}
	s.mark("nodes start")
	f.ready, err = s.change(ctx, nodesim.Start, names, true, s.interval)
	return f, err
}

// change injects a fault into nodes, and returns after how many seconds each of them was Ready or not. expected is how
// long that takes; after that time and --timeout it gives up, and returns those that were.
func (s *step) change(ctx context.Context, fault nodesim.Fault, names []string, ready bool, expected time.Duration) (seconds []float64, err error) {
	begun := time.Now()
	count, err := nodesim.InjectAll(ctx, component.NodeSimAddresses(s.cluster.Config), fault, nodesim.Request{Names: names})
	if err != nil {
		return nil, err
	}
	if count != len(names) {
		return nil, fmt.Errorf("node-sim knows %d of %d nodes to %s", count, len(names), fault)
	}
	what := "stopped nodes NotReady"
	if ready {
		what = "nodes Ready again"
	}
	task := s.Display.Task(s.rung.title()+": "+what, len(names))
	left, shown, at := slices.Clone(names), 0, begun
	for len(left) > 0 && time.Since(begun) < expected+s.options.Timeout {
		left = slices.DeleteFunc(left, func(name string) bool {
			node, err := s.cluster.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
			if err != nil || bulk.NodeReady(node) != ready {
				return false
			}
			seconds = append(seconds, time.Since(begun).Seconds())
			return true
		})
		if len(seconds) > shown || time.Since(at) > showEvery {
			shown, at = len(seconds), time.Now()
			task.Set(shown)
		}
		if err := experiment.Sleep(ctx, pollInterval/2); err != nil {
			task.Interrupt()
			return seconds, err
		}
	}
	if len(left) > 0 {
		task.Fail(fmt.Sprintf("%d of %d", len(seconds), len(names)))
		s.Result.Note("Rung %s: %s: %d of %d after %.0f s.", s.rung.title(), what, len(seconds), len(names), time.Since(begun).Seconds())
		return seconds, nil
	}
	task.Done(fmt.Sprintf("median %.1f s, most %.1f s", median(seconds), most(seconds)))
	return seconds, nil
}
