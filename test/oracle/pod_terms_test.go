package oracle

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest/generate"
)

var topologies = []string{v1.LabelHostname, v1.LabelTopologyZone, "rack"}

// podAffinityTerm returns a term that selects pods in the pod's namespace, in named ones, in all, or in those
// with a label.
func (w *world) podAffinityTerm(pod *v1.Pod) v1.PodAffinityTerm {
	term := v1.PodAffinityTerm{LabelSelector: generate.Selector(w.rand, pod, apps), TopologyKey: pick(w, topologies...)}
	switch w.rand.IntN(6) {
	case 0:
		term.Namespaces = []string{pick(w, namespaces...)}
	case 1:
		term.NamespaceSelector = &metav1.LabelSelector{}
	case 2:
		term.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "yes"}}
	}
	if w.chance(20) && term.LabelSelector.MatchLabels["version"] == "" {
		if w.chance(50) {
			term.MatchLabelKeys = []string{"version"}
		} else {
			term.MismatchLabelKeys = []string{"version"}
		}
	}
	return term
}

// addPodAffinityTerm adds a required or preferred term of pod affinity or anti-affinity.
func (w *world) addPodAffinityTerm(pod *v1.Pod) {
	term := w.podAffinityTerm(pod)
	weighted := v1.WeightedPodAffinityTerm{Weight: int32(1 + w.rand.IntN(100)), PodAffinityTerm: term}
	affinity := ensure(&pod.Spec.Affinity)
	switch n := w.rand.IntN(16); {
	case n < 2:
		to := ensure(&affinity.PodAffinity)
		to.RequiredDuringSchedulingIgnoredDuringExecution = append(to.RequiredDuringSchedulingIgnoredDuringExecution, term)
	case n < 5:
		to := ensure(&affinity.PodAntiAffinity)
		to.RequiredDuringSchedulingIgnoredDuringExecution = append(to.RequiredDuringSchedulingIgnoredDuringExecution, term)
	case n < 8:
		to := ensure(&affinity.PodAntiAffinity)
		to.PreferredDuringSchedulingIgnoredDuringExecution = append(to.PreferredDuringSchedulingIgnoredDuringExecution, weighted)
	default:
		to := ensure(&affinity.PodAffinity)
		to.PreferredDuringSchedulingIgnoredDuringExecution = append(to.PreferredDuringSchedulingIgnoredDuringExecution, weighted)
	}
}
