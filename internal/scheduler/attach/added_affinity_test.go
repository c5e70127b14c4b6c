package attach_test

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/reference"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// TestAddedAffinity has a profile that adds a node affinity to that of each pod. No pod refers to the label.
func TestAddedAffinity(t *testing.T) {
	for _, requirement := range []v1.NodeSelectorRequirement{
		{Key: "disk", Operator: v1.NodeSelectorOpIn, Values: []string{"ssd"}},
		{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{"node-1", "node-3"}},
	} {
		t.Run(requirement.Key, func(t *testing.T) {
			term := v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{requirement}}
			w := worldWithAffinity(t, &v1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution:  &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{term}},
				PreferredDuringSchedulingIgnoredDuringExecution: []v1.PreferredSchedulingTerm{{Weight: 10, Preference: term}},
			})
			for i := range 10 {
				name := fmt.Sprint("node-", i)
				node := schedtest.PlainNode(name, "8")
				node.Labels["disk"] = []string{"hdd", "ssd"}[i%2]
				w.putNode(node)
			}
			for i := range 10 {
				pod := schedtest.PlainPod(fmt.Sprint("pod-", i), "1")
				result, err := w.scheduleAndCompare(pod)
				w.must(err)
				w.bind(pod, result.SuggestedHost)
			}
		})
	}
}

// worldWithAffinity returns a world without nodes whose profile adds a node affinity.
func worldWithAffinity(t *testing.T, added *v1.NodeAffinity) *world {
	w := newWorld(t, 1, 0)
	clear(w.Nodes)
	profile := schedtest.DefaultProfile(t).DeepCopy()
	for _, plugin := range profile.PluginConfig {
		if args, ok := plugin.Args.(*config.NodeAffinityArgs); ok {
			args.AddedAffinity = added
		}
	}
	for i := range w.informers {
		w.informers[i] = informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	}
	w.sched, w.ranker = w.newScheduler(w.informers[0], []config.KubeSchedulerProfile{*profile})
	var err error
	w.reference, err = reference.New(w.ctx, *profile, w.informers[1])
	w.must(err)
	for _, factory := range w.informers {
		w.must(factory.Core().V1().Namespaces().Informer().GetIndexer().Add(&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}))
	}
	return w
}
