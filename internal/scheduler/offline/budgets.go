package offline

import (
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/pushinformer"
)

// spendBudgets lowers the number of allowed disruptions of the PodDisruptionBudgets of an evicted pod, as the controller of
// the budgets does. Otherwise each preemption could use up the whole budget. A pod that does not count for a budget leaves it
// as it is: one that is not ready, or that was placed here, after the budget was computed.
func (c *Cluster) spendBudgets(pod *v1.Pod) error {
	if c.placed.Has(pod.UID) || !countsAsReady(pod) {
		return nil
	}
	budgets, err := c.indexed.informers.Policy().V1().PodDisruptionBudgets().Lister().PodDisruptionBudgets(pod.Namespace).List(labels.Everything())
	if err != nil {
		return err
	}
	for _, budget := range budgets {
		if _, disrupted := budget.Status.DisruptedPods[pod.Name]; disrupted || budget.Status.DisruptionsAllowed <= 0 || !protects(budget, pod) {
			continue
		}
		after := budget.DeepCopy()
		after.Status.DisruptionsAllowed--
		after.ResourceVersion = nextVersion(budget.ResourceVersion)
		for _, s := range c.sides() {
			if err := pushinformer.Push(s.informers, after); err != nil {
				return err
			}
		}
	}
	return nil
}

// countsAsReady returns whether a pod is ready. A pod without this condition, for example in a file that was written by hand,
// counts as ready.
func countsAsReady(pod *v1.Pod) bool {
	_, ready := podutil.GetPodCondition(&pod.Status, v1.PodReady)
	return ready == nil || ready.Status == v1.ConditionTrue
}

// protects returns whether a budget protects a pod of its namespace from preemption: upstream ignores empty selectors, and
// pods without labels.
func protects(budget *policyv1.PodDisruptionBudget, pod *v1.Pod) bool {
	selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
	return err == nil && len(pod.Labels) > 0 && !selector.Empty() && selector.Matches(labels.Set(pod.Labels))
}
