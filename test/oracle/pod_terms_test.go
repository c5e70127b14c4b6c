package oracle

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

var topologies = []string{v1.LabelHostname, v1.LabelTopologyZone, "rack"}

// selector returns a label selector. It often selects the pod itself.
func (w *world) selector(pod *v1.Pod) *metav1.LabelSelector {
	switch w.rand.IntN(5) {
	case 0:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: []string{pick(w, apps...)}},
		}}
	case 1:
		return &metav1.LabelSelector{MatchLabels: map[string]string{"version": "1"}}
	case 2:
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": pick(w, apps...)}}
	}
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": pod.Labels["app"]}}
}

// addSpreadConstraint adds a topology spread constraint, unless it would be a duplicate.
func (w *world) addSpreadConstraint(pod *v1.Pod) {
	constraint := v1.TopologySpreadConstraint{
		MaxSkew: int32(1 + w.rand.IntN(3)), TopologyKey: pick(w, topologies...),
		WhenUnsatisfiable: pick(w, v1.DoNotSchedule, v1.ScheduleAnyway), LabelSelector: w.selector(pod),
	}
	for _, other := range pod.Spec.TopologySpreadConstraints {
		if other.TopologyKey == constraint.TopologyKey && other.WhenUnsatisfiable == constraint.WhenUnsatisfiable {
			return
		}
	}
	if w.chance(20) && constraint.LabelSelector.MatchLabels["version"] == "" {
		constraint.MatchLabelKeys = []string{"version"}
	}
	if w.chance(20) && constraint.WhenUnsatisfiable == v1.DoNotSchedule {
		constraint.MinDomains = ptr.To(int32(1 + w.rand.IntN(5)))
	}
	if w.chance(30) {
		constraint.NodeTaintsPolicy = ptr.To(v1.NodeInclusionPolicyHonor)
	}
	if w.chance(30) {
		constraint.NodeAffinityPolicy = ptr.To(v1.NodeInclusionPolicyIgnore)
	}
	pod.Spec.TopologySpreadConstraints = append(pod.Spec.TopologySpreadConstraints, constraint)
}

// podAffinityTerm returns a term that selects pods in the pod's namespace, in named ones, in all, or in those
// with a label.
func (w *world) podAffinityTerm(pod *v1.Pod) v1.PodAffinityTerm {
	term := v1.PodAffinityTerm{LabelSelector: w.selector(pod), TopologyKey: pick(w, topologies...)}
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
