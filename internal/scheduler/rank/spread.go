package rank

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/helper"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
)

// defaultSelector returns the selector of the default constraints for a pod without constraints of its own;
// nil if default constraints do not apply to the pod.
func (p *Profile) defaultSelector(pod *v1.Pod) labels.Selector {
	if len(pod.Spec.TopologySpreadConstraints) > 0 || len(p.spread.defaults) == 0 || !p.spread.filter && !p.spread.score {
		return nil
	}
	s := &p.spread
	selector := helper.DefaultSelector(pod, s.services, s.controllers, s.replicaSets, s.statefulSets)
	if selector.Empty() {
		return nil
	}
	return selector
}

// spreadConstraint is a spread constraint of the pods of a class.
type spreadConstraint struct {
	v1.TopologySpreadConstraint
	selector labels.Selector
	// keys are the labels that a node must have. Otherwise its pods do not count.
	keys []string
}

// eligible returns whether the counter counts the pods on a node.
func (c *counter) eligible(cl *Class, node *v1.Node) bool {
	if c.spread == nil {
		return true
	}
	for _, key := range c.spread.keys {
		if _, labelled := node.Labels[key]; !labelled {
			return false
		}
	}
	if policy := c.spread.NodeAffinityPolicy; policy == nil || *policy == v1.NodeInclusionPolicyHonor {
		// Upstream ignores the error of a malformed term, too.
		if match, _ := cl.requiredNode.Match(node); !match {
			return false
		}
	}
	if policy := c.spread.NodeTaintsPolicy; policy != nil && *policy == v1.NodeInclusionPolicyHonor {
		operators := utilfeature.DefaultFeatureGate.Enabled(features.TaintTolerationComparisonOperators)
		_, untolerated := corev1helpers.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints,
			cl.pod.GetPod().Spec.Tolerations, helper.DoNotScheduleTaintsFilterFunc(), operators)
		return !untolerated
	}
	return true
}

// specifySpread adds the counters of PodTopologySpread to the Spec.
func (cl *Class) specifySpread() error {
	pod := cl.pod.GetPod()
	given, fallback := pod.Spec.TopologySpreadConstraints, cl.profile.defaultSelector(pod)
	if len(given) == 0 && fallback != nil {
		given = cl.profile.spread.defaults
	}
	cl.Spec.RequireAllKeys = len(pod.Spec.TopologySpreadConstraints) > 0 || !cl.profile.spread.systemDefaulting
	for _, action := range []v1.UnsatisfiableConstraintAction{v1.DoNotSchedule, v1.ScheduleAnyway} {
		var keys []string
		for i := range given {
			if given[i].WhenUnsatisfiable == action {
				keys = append(keys, given[i].TopologyKey)
			}
		}
		if action == v1.ScheduleAnyway && !cl.Spec.RequireAllKeys {
			keys = nil
		}
		for i := range given {
			if given[i].WhenUnsatisfiable != action {
				continue
			}
			constraint := &spreadConstraint{TopologySpreadConstraint: given[i], selector: fallback, keys: keys}
			if fallback == nil {
				selector, err := spreadSelector(&given[i], pod.Labels)
				if err != nil {
					return err
				}
				constraint.selector = selector
			}
			if action == v1.ScheduleAnyway && constraint.MaxSkew < 1 {
				// The API server refuses such a constraint. Upstream's score is then out of its range.
				return reasonConstraints
			}
			cl.addSpread(constraint)
		}
	}
	return nil
}

// addSpread adds one constraint to the Spec.
func (cl *Class) addSpread(constraint *spreadConstraint) {
	rules, skew := &cl.profile.spread, int64(constraint.MaxSkew)
	switch {
	case constraint.WhenUnsatisfiable == v1.DoNotSchedule && rules.filter:
		hard := index.HardSpread{Counter: cl.addCounter(constraint.TopologyKey, constraint), MaxSkew: skew, MinDomains: 1}
		if constraint.MinDomains != nil {
			hard.MinDomains = int(*constraint.MinDomains)
		}
		if constraint.selector.Matches(labels.Set(cl.pod.GetPod().Labels)) {
			hard.Self = 1
		}
		cl.countsByHostname = cl.countsByHostname || constraint.TopologyKey == v1.LabelHostname
		cl.Spec.Hard = append(cl.Spec.Hard, hard)
	case constraint.WhenUnsatisfiable == v1.ScheduleAnyway && rules.score:
		soft := index.SoftSpread{Counter: cl.addCounter(constraint.TopologyKey, constraint), MaxSkew: skew}
		cl.Spec.Soft = append(cl.Spec.Soft, soft)
	}
}

// spreadSelector returns the selector of a constraint, restricted to pods with the pod's own values of the
// labels in matchLabelKeys.
func spreadSelector(constraint *v1.TopologySpreadConstraint, podLabels map[string]string) (labels.Selector, error) {
	selector, err := metav1.LabelSelectorAsSelector(constraint.LabelSelector)
	if err != nil {
		return nil, err
	}
	if !utilfeature.DefaultFeatureGate.Enabled(features.MatchLabelKeysInPodTopologySpread) {
		return selector, nil
	}
	own := labels.Set{}
	for _, key := range constraint.MatchLabelKeys {
		if value, labelled := podLabels[key]; labelled {
			own[key] = value
		}
	}
	requirements, selectable := selector.Requirements()
	if len(own) == 0 || !selectable {
		return selector, nil
	}
	return labels.SelectorFromSet(own).Add(requirements...), nil
}

// spreadAmounts adds to sums, by counter, the amounts that a pod of a kind adds to the counters of
// PodTopologySpread.
func (cl *Class) spreadAmounts(k *cache.Kind, sums map[int]int64) {
	pod := k.Info.GetPod()
	if k.Terminating || pod.Namespace != cl.pod.GetPod().Namespace {
		return
	}
	for i := range cl.terms.counters {
		spread := cl.terms.counters[i].spread
		if spread != nil && !spread.selector.Empty() && spread.selector.Matches(labels.Set(pod.Labels)) {
			sums[i]++
		}
	}
}
