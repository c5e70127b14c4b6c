package attach_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// worldWithLabels returns a world with four nodes, of which the first two also have labels with the given keys.
func worldWithLabels(t *testing.T, shards int, keys []string) *world {
	w := newWorld(t, 1, shards)
	for _, node := range slices.Collect(maps.Values(w.Nodes)) {
		delete(w.Nodes, node.Name)
		w.must(w.cacheOf(node.Name).RemoveNode(klog.Logger{}, trimmed(w, node)))
	}
	for i := range 4 {
		node := schedtest.PlainNode(fmt.Sprint("labelled-", i), "64")
		if i < 2 {
			for _, key := range keys {
				node.Labels[key] = fmt.Sprint(i)
			}
		}
		w.putNode(node)
	}
	return w
}

// scheduleByIndex schedules a pod, compares the decision, and checks that the index made it.
func (w *world) scheduleByIndex(pod *v1.Pod) {
	w.t.Helper()
	fallbacks := w.ranker.FallbackCount
	_, err := w.scheduleAndCompare(pod)
	w.must(err)
	if w.ranker.FallbackCount > fallbacks {
		w.t.Errorf("the full scan scheduled pod %s, reason %s, want the index", pod.Name, w.ranker.LastFallback)
	}
}

// TestManyTopologyKeys has a pod on a node whose affinity terms match all pods and have many topology keys. The
// index still ranks nodes for other pods, with the keys of labels that nodes have. After the pod was deleted, new
// classes have no counter for it.
func TestManyTopologyKeys(t *testing.T) {
	for _, shards := range []int{0, 2} {
		for _, carried := range []int{0, 65, 200} {
			for _, required := range []bool{false, true} {
				t.Run(fmt.Sprintf("%d shards, %d labels, required=%t", shards, carried, required), func(t *testing.T) {
					labels := schedtest.TopologyKeys("label", carried)
					w := worldWithLabels(t, shards, labels)
					many := schedtest.PodWithTopologyKeys("many", "1", append(schedtest.TopologyKeys("none", 65), labels...))
					many.Spec.NodeName = "labelled-0"
					if required {
						forbidAll(many)
					}
					w.putBound(many)
					w.scheduleByIndex(schedtest.PlainPod("other", "1"))
					w.scheduleByIndex(schedtest.PodWithTopologyKeys("similar", "1", append(schedtest.TopologyKeys("more", 65), labels...)))
					delete(w.Pods, many.UID)
					w.must(w.cacheOf(many.Spec.NodeName).RemovePod(klog.Logger{}, trimmed(w, many)))
					w.scheduleByIndex(schedtest.PlainPod("after", "2"))
					for _, s := range append([]*worldShard{{w.sched, w.ranker}}, w.shards...) {
						info, err := framework.NewPodInfo(schedtest.PlainPod("new", "3"))
						w.must(err)
						class, _, err := s.ranker.Class(w.ctx, s.ranker.Profiles[v1.DefaultSchedulerName], info, nil)
						w.must(err)
						if got := len(class.Spec().Counters); got > 0 {
							t.Errorf("a new class has %d counters, want 0", got)
						}
					}
				})
			}
		}
	}
}

// forbidAll turns the preferred affinity terms of a pod into required anti-affinity terms.
func forbidAll(pod *v1.Pod) {
	terms := &v1.PodAntiAffinity{}
	for _, preferred := range pod.Spec.Affinity.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
		terms.RequiredDuringSchedulingIgnoredDuringExecution = append(terms.RequiredDuringSchedulingIgnoredDuringExecution, preferred.PodAffinityTerm)
	}
	pod.Spec.Affinity = &v1.Affinity{PodAntiAffinity: terms}
}

// TestLabelOfTopologyKeyArrives has affinity terms whose topology key no node has as a label at first. As soon as
// a node gets the label, the terms count.
func TestLabelOfTopologyKeyArrives(t *testing.T) {
	for _, shards := range []int{0, 2} {
		t.Run(fmt.Sprintf("%d shards", shards), func(t *testing.T) {
			w := worldWithLabels(t, shards, nil)
			key := schedtest.TopologyKeys("late", 1)
			preferring, forbidding := schedtest.PodWithTopologyKeys("preferring", "1", key), schedtest.PodWithTopologyKeys("forbidding", "1", key)
			preferring.Spec.NodeName, forbidding.Spec.NodeName = "labelled-1", "labelled-2"
			forbidAll(forbidding)
			w.putBound(preferring)
			w.putBound(forbidding)
			own := schedtest.PodWithTopologyKeys("own", "2", key)
			for _, labelled := range []string{"", "labelled-0", "labelled-1", "labelled-2", "labelled-3"} {
				if labelled != "" {
					node := w.Nodes[labelled].DeepCopy()
					node.Labels[key[0]] = labelled
					w.putNode(node)
				}
				w.scheduleByIndex(schedtest.PlainPod("plain", "1"))
				w.scheduleByIndex(own)
			}
		})
	}
}
