package replica

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// TestManySelectorKeys places two pods whose selectors refer to more labels than the leader usually remembers. Answers
// of their owner bring the labels back when the leader has forgotten them, so the leader must not forget them again and
// again: that ends each batch.
func TestManySelectorKeys(t *testing.T) {
	var nodes []*v1.Node
	for i := range 10 {
		nodes = append(nodes, schedtest.PlainNode(fmt.Sprint("node-", i), "64"))
	}
	g := startReplicas(t, make([]bool, 2), nodes...)
	search, sched := g.replicas[0].leader.Search(), g.replicas[0].sched
	search.Cluster.SpareNames = 100
	var last *index.Index
	var replaced atomic.Int64
	schedule := sched.SchedulePod
	sched.SchedulePod = func(ctx context.Context, fw framework.Framework, state fwk.CycleState, pod *framework.QueuedPodInfo) (kubescheduler.ScheduleResult, error) {
		if last != search.Cluster.Index {
			last = search.Cluster.Index
			replaced.Add(1)
		}
		return schedule(ctx, fw, state, pod)
	}
	g.lead(0)
	place := func(prefix string) {
		const pods = 150
		for i := range pods {
			g.API.Put(schedtest.PlainPod(fmt.Sprint(prefix, "-", i), "10m"))
		}
		for i := range pods {
			g.AwaitBound(fmt.Sprint(prefix, "-", i))
		}
	}
	place("before")
	for i := range 2 {
		pod := schedtest.PlainPod(fmt.Sprint("keys-", i), "10m")
		var selector metav1.LabelSelector
		for key := range 500 {
			selector.MatchExpressions = append(selector.MatchExpressions, metav1.LabelSelectorRequirement{
				Key: fmt.Sprintf("key-%d-%d", i, key), Operator: metav1.LabelSelectorOpExists,
			})
		}
		pod.Spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []v1.WeightedPodAffinityTerm{{
			Weight: 1, PodAffinityTerm: v1.PodAffinityTerm{TopologyKey: v1.LabelHostname, LabelSelector: &selector},
		}}}}
		g.API.Put(pod)
		g.AwaitBound(pod.Name)
	}
	place("after")
	place("again")
	// Once for the first index, and once for the names of the two pods.
	if n := replaced.Load(); n < 1 || n > 3 {
		t.Errorf("the leader has replaced its index %d times, want at most 3", n)
	}
}
