package verify

import (
	"encoding/json"
	"fmt"
	"math"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// checkSpread checks the hard topology spread constraints of all classes. The domain with the fewest pods
// is the domain with the fewest selected pods. In the domain of a pod, only pods with the constraint
// count, because pods without the constraint may have been bound there later. A violation therefore
// means that even the pods with the constraint exceed the maximum skew.
func (c *Cluster) checkSpread() error {
	groups := map[string]*spreadGroup{}
	for _, class := range c.classList {
		for i := range class.spec.TopologySpreadConstraints {
			constraint := &class.spec.TopologySpreadConstraints[i]
			if constraint.WhenUnsatisfiable != v1.DoNotSchedule {
				continue
			}
			selector, err := spreadSelector(constraint, class.labels)
			if err != nil {
				return fmt.Errorf("topology spread of pods in %s: %w", class.namespace, err)
			}
			// A pod does not increase the skew if the selector of its own constraint does not match it.
			if !selector.Matches(class.labels) {
				continue
			}
			group := &spreadGroup{constraint: constraint, selector: selector, representative: class}
			key, err := group.key()
			if err != nil {
				return err
			}
			if groups[key] == nil {
				groups[key] = group
			}
			groups[key].classes = append(groups[key].classes, class)
		}
	}
	for _, group := range groups {
		if err := c.checkSpreadGroup(group); err != nil {
			return err
		}
	}
	return nil
}

// spreadGroup is a constraint with the classes that have it. For all these classes, the same nodes and
// pods count.
type spreadGroup struct {
	constraint     *v1.TopologySpreadConstraint
	selector       labels.Selector
	representative *podClass // the first of classes
	classes        []*podClass
}

// key identifies the group. For constraints with equal keys, the same nodes and pods count.
func (g *spreadGroup) key() (string, error) {
	parts := []any{g.constraint, g.representative.namespace, g.selector.String(), g.topologyKeys()}
	if g.honorsAffinity() {
		parts = append(parts, g.representative.spec.NodeSelector)
		if affinity := g.representative.spec.Affinity; affinity != nil {
			parts = append(parts, affinity.NodeAffinity)
		}
	}
	if g.honorsTaints() {
		parts = append(parts, g.representative.spec.Tolerations)
	}
	key, err := json.Marshal(parts)
	return string(key), err
}

// topologyKeys returns the topology keys of all hard constraints of the class. A node counts only if it
// has all of them.
func (g *spreadGroup) topologyKeys() []string {
	var keys []string
	for _, constraint := range g.representative.spec.TopologySpreadConstraints {
		if constraint.WhenUnsatisfiable == v1.DoNotSchedule {
			keys = append(keys, constraint.TopologyKey)
		}
	}
	return keys
}

func (g *spreadGroup) honorsAffinity() bool {
	policy := g.constraint.NodeAffinityPolicy
	return policy == nil || *policy == v1.NodeInclusionPolicyHonor
}

func (g *spreadGroup) honorsTaints() bool {
	policy := g.constraint.NodeTaintsPolicy
	return policy != nil && *policy == v1.NodeInclusionPolicyHonor
}

// eligible reports whether a node counts for the constraint.
func (g *spreadGroup) eligible(node *v1.Node) (bool, error) {
	for _, key := range g.topologyKeys() {
		if _, labelled := node.Labels[key]; !labelled {
			return false, nil
		}
	}
	if g.honorsAffinity() {
		if match, err := g.representative.required.Match(node); err != nil || !match {
			return false, err
		}
	}
	return !g.honorsTaints() || len(untoleratedTaints(g.representative, node)) == 0, nil
}

// checkSpreadGroup counts the pods of each domain and reports those beyond the maximum skew.
func (c *Cluster) checkSpreadGroup(g *spreadGroup) error {
	key := g.constraint.TopologyKey
	counts := map[string]int{}
	eligible := make([]bool, len(c.nodes))
	for i := range c.nodes {
		fits, err := g.eligible(c.nodes[i].object)
		if err != nil {
			return fmt.Errorf("node affinity of pods in %s: %w", g.representative.namespace, err)
		}
		if eligible[i] = fits; fits {
			counts[c.nodes[i].object.Labels[key]] += 0
		}
	}
	for _, class := range c.classList {
		if class.namespace == g.representative.namespace && g.selector.Matches(class.labels) {
			for i := range class.pods {
				if pod := &class.pods[i]; eligible[pod.node] && !pod.terminating {
					counts[c.nodes[pod.node].object.Labels[key]]++
				}
			}
		}
	}
	fewest := math.MaxInt
	for _, count := range counts {
		fewest = min(fewest, count)
	}
	if domains := g.constraint.MinDomains; domains != nil && len(counts) < int(*domains) {
		fewest = 0
	}
	withConstraint := map[string]int{}
	for _, class := range g.classes {
		for i := range class.pods {
			pod := &class.pods[i]
			if !eligible[pod.node] || pod.terminating {
				continue
			}
			domain := c.nodes[pod.node].object.Labels[key]
			if withConstraint[domain]++; withConstraint[domain]-fewest > int(g.constraint.MaxSkew) {
				c.reportViolation(Spread, &c.nodes[pod.node], pod, "%d pods with the constraint in %s=%s, %d pods in the domain with the fewest; the maximum skew is %d",
					withConstraint[domain], key, domain, fewest, g.constraint.MaxSkew)
			}
		}
	}
	return nil
}

// spreadSelector returns the selector of a constraint. For each of the matchLabelKeys, it adds the
// requirement that the value is that of podLabels.
func spreadSelector(constraint *v1.TopologySpreadConstraint, podLabels labels.Set) (labels.Selector, error) {
	selector := constraint.LabelSelector.DeepCopy()
	for _, key := range constraint.MatchLabelKeys {
		if value, labelled := podLabels[key]; labelled && selector != nil {
			selector.MatchExpressions = append(selector.MatchExpressions,
				metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpIn, Values: []string{value}})
		}
	}
	return metav1.LabelSelectorAsSelector(selector)
}
