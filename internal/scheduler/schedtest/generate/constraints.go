package generate

import (
	"math/rand/v2"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Selector returns a label selector of pods of one of the given apps. It often selects the given pod.
func Selector(r *rand.Rand, pod *v1.Pod, apps []string) *metav1.LabelSelector {
	switch r.IntN(5) {
	case 0:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: []string{Pick(r, apps)}},
		}}
	case 1:
		return &metav1.LabelSelector{MatchLabels: map[string]string{"version": "1"}}
	case 2:
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": Pick(r, apps)}}
	}
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": pod.Labels["app"]}}
}

// AddSpreadConstraint adds a topology spread constraint with one of the given topology keys to a pod, unless it would be
// a duplicate. An API server accepts the constraint: no label key is in the selector and in matchLabelKeys.
func AddSpreadConstraint(r *rand.Rand, pod *v1.Pod, keys, apps []string) {
	chance := func(percent int) bool { return r.IntN(100) < percent }
	constraint := v1.TopologySpreadConstraint{
		MaxSkew: int32(1 + r.IntN(3)), TopologyKey: Pick(r, keys),
		WhenUnsatisfiable: Pick(r, []v1.UnsatisfiableConstraintAction{v1.DoNotSchedule, v1.ScheduleAnyway}),
		LabelSelector:     Selector(r, pod, apps),
	}
	for _, other := range pod.Spec.TopologySpreadConstraints {
		if other.TopologyKey == constraint.TopologyKey && other.WhenUnsatisfiable == constraint.WhenUnsatisfiable {
			return
		}
	}
	if chance(20) && constraint.LabelSelector.MatchLabels["version"] == "" {
		constraint.MatchLabelKeys = []string{"version"}
	}
	if chance(20) && constraint.WhenUnsatisfiable == v1.DoNotSchedule {
		constraint.MinDomains = ptr.To(int32(1 + r.IntN(5)))
	}
	if chance(30) {
		constraint.NodeTaintsPolicy = ptr.To(v1.NodeInclusionPolicyHonor)
	}
	if chance(30) {
		constraint.NodeAffinityPolicy = ptr.To(v1.NodeInclusionPolicyIgnore)
	}
	pod.Spec.TopologySpreadConstraints = append(pod.Spec.TopologySpreadConstraints, constraint)
}
