package replica

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/utils/ptr"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// refusals records why pods fit on no node.
type refusals struct {
	mu   sync.Mutex
	last map[string]string
}

// record records the result of an attempt to schedule a pod.
func (r *refusals) record(pod *v1.Pod, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if errors.As(err, new(*framework.FitError)) {
		r.last[pod.Name] = err.Error()
	}
}

// of returns the last reason for which a pod fits on no node; "" if it was not tried yet.
func (r *refusals) of(pod string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last[pod]
}

// newGroupWithRefusals starts two replicas of which the first leads, and records why pods fit on no node.
func newGroupWithRefusals(t *testing.T, nodes ...*v1.Node) (*group, *refusals, *atomic.Int64) {
	t.Helper()
	g, r, queries := startReplicas(t, make([]bool, 2), nodes...), &refusals{last: map[string]string{}}, &atomic.Int64{}
	g.replicas[0].onAttempt(r.record)
	answer := g.replicas[0].answerOwn
	g.replicas[0].answerOwn = func(ctx context.Context, q *wire.Request) *wire.Answer {
		queries.Add(1)
		return answer(ctx, q)
	}
	g.lead(0)
	return g, r, queries
}

// awaitRefused waits until a pod was found to fit on no node.
func (g *group) awaitRefused(r *refusals, pod string) {
	g.T.Helper()
	g.Eventually(fmt.Sprintf("pod %s is refused", pod), func() error {
		if r.of(pod) == "" {
			return errors.New("it was not tried yet")
		}
		return nil
	})
}

// TestIdenticalUnfitPodsShareQueries checks that pods of a class that fit on no node share queries, in a cluster that does
// not change, and that all of them get the same reasons.
func TestIdenticalUnfitPodsShareQueries(t *testing.T) {
	for _, policy := range []v1.PreemptionPolicy{v1.PreemptNever, v1.PreemptLowerPriority} {
		t.Run(string(policy), func(t *testing.T) {
			g, refused, queries := newGroupWithRefusals(t, schedtest.PlainNode("node", "4"), schedtest.PlainNode("other", "2"))
			g.API.Put(schedtest.PlainPod("full", "4"))
			g.AwaitBound("full")
			g.awaitConsistent()
			before := queries.Load()
			const pods = 100
			for i := range pods {
				pod := urgentPod(fmt.Sprintf("pod-%d", i), "8")
				pod.Spec.PreemptionPolicy = &policy
				g.API.Put(pod)
			}
			for i := range pods {
				name := fmt.Sprintf("pod-%d", i)
				g.awaitRefused(refused, name)
				if got, want := refused.of(name), refused.of("pod-0"); got != want {
					t.Errorf("pod %s is refused because %q, the first one because %q", name, got, want)
				}
			}
			if n := queries.Load() - before; n > pods/2 {
				t.Errorf("%d queries to each owner for %d pods, want them to share queries", n, pods)
			}
		})
	}
}

// TestChangeEndsRefusal changes the cluster after a pod was found to fit on no node. It must not be refused for the same
// reason again, and neither must another pod of its class that is created right after the change.
func TestChangeEndsRefusal(t *testing.T) {
	never := v1.PreemptNever
	waiting := func(name string, change func(*v1.Pod)) *v1.Pod {
		pod := urgentPod(name, "1")
		pod.Spec.PreemptionPolicy = &never
		change(pod)
		return pod
	}
	full := schedtest.PlainPod("full", "4")
	for name, c := range map[string]struct {
		pod   func(*v1.Pod)
		event func(*group)
	}{
		"a pod is deleted": {
			func(*v1.Pod) {}, func(g *group) { g.API.Remove(full) },
		},
		"a node is added": {
			func(*v1.Pod) {}, func(g *group) { g.API.Put(schedtest.PlainNode("new", "4")) },
		},
		"a node gets a label": {
			func(pod *v1.Pod) { pod.Spec.NodeSelector = map[string]string{"disk": "ssd"} },
			func(g *group) {
				node := schedtest.PlainNode("empty", "4")
				node.Labels["disk"] = "ssd"
				node.Spec.Taints = []v1.Taint{{Key: "reserved", Effect: v1.TaintEffectNoSchedule}}
				g.API.Put(node)
			},
		},
		"a pod is placed": {
			func(pod *v1.Pod) {
				pod.Spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{{
					TopologyKey: v1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "server"}},
				}}}}
			},
			func(g *group) {
				server := schedtest.PlainPod("server", "1")
				server.Labels = map[string]string{"app": "server"}
				server.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}}
				g.API.Put(server)
				g.AwaitBound("server")
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			// Only pods that select or tolerate this node may use it.
			empty := schedtest.PlainNode("empty", "4")
			empty.Spec.Taints = []v1.Taint{{Key: "reserved", Effect: v1.TaintEffectNoSchedule}}
			tolerate := func(pod *v1.Pod) {
				if c.pod(pod); pod.Spec.NodeSelector != nil || pod.Spec.Affinity != nil {
					pod.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}}
				}
			}
			g, refused, _ := newGroupWithRefusals(t, schedtest.PlainNode("node", "4"), empty)
			g.API.Put(full)
			g.AwaitBound("full")
			g.awaitConsistent()
			g.API.Put(waiting("first", tolerate))
			g.awaitRefused(refused, "first")
			g.API.Put(waiting("second", tolerate))
			g.awaitRefused(refused, "second")
			c.event(g)
			g.API.Put(waiting("third", tolerate))
			for _, pod := range []string{"first", "second", "third"} {
				g.AwaitBound(pod)
			}
			g.awaitConsistent()
		})
	}
}

// TestNominatedPodMeetsAffinity has a pod that needs another pod beside it, and a feature that no node has. The other
// pod is only nominated. Upstream asks the plugins with the nominated pod first, so it reports the missing feature,
// and events about features retry the pod.
func TestNominatedPodMeetsAffinity(t *testing.T) {
	g, refused, _ := newGroupWithRefusals(t, schedtest.PlainNode("node", "4"))
	g.nominate("server", "1", "node")
	pod := schedtest.PlainPod("client", "1")
	pod.Spec.HostNetwork, pod.Spec.HostUsers = true, ptr.To(false)
	pod.Spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{{
		TopologyKey: v1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "server"}},
	}}}}
	g.API.Put(pod)
	g.awaitRefused(refused, "client")
	if reason, want := refused.of("client"), "didn't match Pod's required features"; !strings.Contains(reason, want) {
		t.Errorf("the pod is refused because %q, want %q", reason, want)
	}
}
