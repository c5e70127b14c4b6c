package rank_test

import (
	"fmt"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// TestReferencedLabelsAreSentOnce checks that an answer has the labels to which selectors refer only if the leader does
// not have them: at first, after another pod has referred to one more label, and after the index was rebuilt, because
// labels may have been forgotten.
func TestReferencedLabelsAreSentOnce(t *testing.T) {
	f := schedtest.NewScripted(t, schedtest.NewAPI())
	nodes := f.Sched.Cache.(*cache.Cache)
	nodes.AddNode(klog.Logger{}, schedtest.PlainNode("node", "64"))
	f.Ranker.Replica, f.Ranker.Cluster.ReturnCycles = "self", 0
	refer := func(label string) {
		pod := schedtest.PlainPod(label, "1")
		pod.Spec.NodeName = "node"
		pod.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{{
			TopologyKey: v1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{label: ""}},
		}}}}
		f.Must(nodes.AddPod(klog.Logger{}, pod))
	}
	known := map[string]int64{"other": 1}
	check := func(when string, want ...string) {
		t.Helper()
		f.Must(nodes.UpdateSnapshot(klog.Logger{}, f.Ranker.Cluster.Snapshot.Upstream))
		defer nodes.EndCycle(klog.Logger{})
		answer, err := f.Ranker.Answer(t.Context(), &wire.Query{
			Pod: wire.MarshalObject(schedtest.PlainPod("pod", "1")), Profile: v1.DefaultSchedulerName, Offers: 1, Steps: 1, KnownLabels: known,
		})
		f.Must(err)
		slices.Sort(answer.ReferencedLabels)
		if !slices.Equal(answer.ReferencedLabels, want) {
			t.Errorf("%s: the answer has the labels %v, want %v", when, answer.ReferencedLabels, want)
		}
		if len(answer.LabelVersions) != 1 {
			t.Errorf("%s: the answer has the versions %v, want one", when, answer.LabelVersions)
		}
		known = answer.LabelVersions
	}
	refer("a")
	check("first answer", "a")
	check("second answer")
	refer("b")
	check("another label", "a", "b")
	check("no other label")
	known = nil
	check("another leader", "a", "b")
	// Now each cycle rebuilds the index.
	f.Ranker.Cluster.SpareNames = -1000
	check("after the index was rebuilt", "a", "b")
}

// TestTooManyReferencedLabels places a pod whose selector refers to more labels than an answer may have. The answer says
// that all labels are referred to. Then pods that differ in any label are of different classes.
func TestTooManyReferencedLabels(t *testing.T) {
	f := schedtest.NewScripted(t, schedtest.NewAPI())
	nodes := f.Sched.Cache.(*cache.Cache)
	nodes.AddNode(klog.Logger{}, schedtest.PlainNode("node", "64"))
	pod := schedtest.PlainPod("large", "1")
	pod.Spec.NodeName = "node"
	var selector metav1.LabelSelector
	for i := range wire.MaxReferencedLabels + 1 {
		selector.MatchExpressions = append(selector.MatchExpressions, metav1.LabelSelectorRequirement{Key: fmt.Sprint("key-", i), Operator: metav1.LabelSelectorOpExists})
	}
	pod.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{{
		TopologyKey: v1.LabelHostname, LabelSelector: &selector,
	}}}}
	f.Must(nodes.AddPod(klog.Logger{}, pod))
	f.Must(nodes.UpdateSnapshot(klog.Logger{}, f.Ranker.Cluster.Snapshot.Upstream))
	defer nodes.EndCycle(klog.Logger{})
	answer, err := f.Ranker.Answer(t.Context(), &wire.Query{
		Pod: wire.MarshalObject(schedtest.PlainPod("pod", "1")), Profile: v1.DefaultSchedulerName, Offers: 1, Steps: 1, Node: "node", IncludeNode: true,
	})
	f.Must(err)
	if len(answer.ReferencedLabels) != 0 || !answer.AllLabelsReferenced {
		t.Errorf("the answer has %d labels, all %t; want none, and all", len(answer.ReferencedLabels), answer.AllLabelsReferenced)
	}
	if len(answer.Pods) != 1 || len(answer.Pods[0]) > 1000 {
		t.Errorf("the answer has %d pods of the node, want 1 without its affinity", len(answer.Pods))
	}
	leader := f.Ranker.WithoutNodes().Cluster
	different := func() bool {
		var keys []string
		for _, value := range []string{"a", "b"} {
			pod := schedtest.PlainPod("pod", "1")
			pod.Labels = map[string]string{"label": value}
			info, err := framework.NewPodInfo(pod)
			f.Must(err)
			key, err := rank.ClassKey(leader, f.Ranker.Profiles[v1.DefaultSchedulerName], info)
			f.Must(err)
			keys = append(keys, string(key))
		}
		return keys[0] != keys[1]
	}
	if different() {
		t.Error("pods with different labels to which no selector refers are of different classes")
	}
	leader.Names.AllVisible = true
	if !different() {
		t.Error("pods with different labels are of one class, although all labels are referred to")
	}
}
