package cache

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
)

// podTerms returns all pod affinity and anti-affinity terms, required and preferred.
func podTerms(affinity *v1.Affinity) []v1.PodAffinityTerm {
	terms := slices.Concat(fwk.GetPodAffinityTerms(affinity), fwk.GetPodAntiAffinityTerms(affinity))
	var preferred []v1.WeightedPodAffinityTerm
	if affinity.PodAffinity != nil {
		preferred = append(preferred, affinity.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution...)
	}
	if affinity.PodAntiAffinity != nil {
		preferred = append(preferred, affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution...)
	}
	for i := range preferred {
		terms = append(terms, preferred[i].PodAffinityTerm)
	}
	return terms
}

// OwnSelectorKeys returns the label keys to which the selectors in a pod's spread constraints and affinity
// terms refer.
func OwnSelectorKeys(pod *v1.Pod) sets.Set[string] {
	keys := sets.Set[string]{}
	add := func(selector *metav1.LabelSelector) {
		if selector == nil {
			return
		}
		for key := range selector.MatchLabels {
			keys.Insert(key)
		}
		for i := range selector.MatchExpressions {
			keys.Insert(selector.MatchExpressions[i].Key)
		}
	}
	for i := range pod.Spec.TopologySpreadConstraints {
		add(pod.Spec.TopologySpreadConstraints[i].LabelSelector)
		keys.Insert(pod.Spec.TopologySpreadConstraints[i].MatchLabelKeys...)
	}
	if affinity := pod.Spec.Affinity; affinity != nil {
		for _, term := range podTerms(affinity) {
			add(term.LabelSelector)
		}
	}
	return keys
}
