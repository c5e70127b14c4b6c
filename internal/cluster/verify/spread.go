package verify

import (
	"encoding/json"
	"fmt"
	"math"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// checkSpread checks the hard topology spread constraints of all classes. It counts only pods that
// have the constraint themselves in the fuller domains, because pods without it may have been
// added later. A violation means that even these pods exceed the skew.
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
			// A pod that its own selector does not match does not increase the skew.
			if !selector.Matches(class.labels) {
				continue
			}
			group := &spreadGroup{constraint: constraint, selector: selector, of: class}
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

// spreadGroup is the set of classes that have the same constraint, for which the same nodes and
// pods count.
type spreadGroup struct {
	constraint *v1.TopologySpreadConstraint
	selector   labels.Selector
	of         *podClass
	classes    []*podClass
}

// key identifies the group: constraints with equal keys count the same nodes and pods.
func (g *spreadGroup) key() (string, error) {
	parts := []any{g.constraint, g.of.namespace, g.selector.String(), g.keys()}
	if g.honorsAffinity() {
		parts = append(parts, g.of.spec.NodeSelector)
		if affinity := g.of.spec.Affinity; affinity != nil {
			parts = append(parts, affinity.NodeAffinity)
		}
	}
	if g.honorsTaints() {
		parts = append(parts, g.of.spec.Tolerations)
	}
	key, err := json.Marshal(parts)
	return string(key), err
}

// keys returns the topology keys that a node must have to be counted.
func (g *spreadGroup) keys() []string {
	var keys []string
	for _, constraint := range g.of.spec.TopologySpreadConstraints {
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

// eligible reports whether a node is counted for the constraint.
func (g *spreadGroup) eligible(node *v1.Node) (bool, error) {
	for _, key := range g.keys() {
		if _, labelled := node.Labels[key]; !labelled {
			return false, nil
		}
	}
	if g.honorsAffinity() {
		if match, err := g.of.required.Match(node); err != nil || !match {
			return false, err
		}
	}
	return !g.honorsTaints() || len(untolerated(g.of, node, repelsPods)) == 0, nil
}

// checkSpreadGroup counts the pods of each domain and reports those beyond the maximum skew.
func (c *Cluster) checkSpreadGroup(g *spreadGroup) error {
	key := g.constraint.TopologyKey
	counts := map[string]int{}
	eligible := make([]bool, len(c.nodes))
	for i := range c.nodes {
		fits, err := g.eligible(c.nodes[i].object)
		if err != nil {
			return fmt.Errorf("node affinity of pods in %s: %w", g.of.namespace, err)
		}
		if eligible[i] = fits; fits {
			counts[c.nodes[i].object.Labels[key]] += 0
		}
	}
	for _, class := range c.classList {
		if class.namespace == g.of.namespace && g.selector.Matches(class.labels) {
			for i := range class.pods {
				if pod := &class.pods[i]; eligible[pod.node] && !pod.terminating {
					counts[c.nodes[pod.node].object.Labels[key]]++
				}
			}
		}
	}
	least := math.MaxInt
	for _, count := range counts {
		least = min(least, count)
	}
	if domains := g.constraint.MinDomains; domains != nil && len(counts) < int(*domains) {
		least = 0
	}
	placed := map[string]int{}
	for _, class := range g.classes {
		for i := range class.pods {
			pod := &class.pods[i]
			if !eligible[pod.node] || pod.terminating {
				continue
			}
			domain := c.nodes[pod.node].object.Labels[key]
			if placed[domain]++; placed[domain]-least > int(g.constraint.MaxSkew) {
				c.violate(Spread, &c.nodes[pod.node], pod, "%d pods with the constraint in %s=%s, %d pods in the domain with the fewest; the maximum skew is %d",
					placed[domain], key, domain, least, g.constraint.MaxSkew)
			}
		}
	}
	return nil
}

// spreadSelector is the selector of a constraint, extended by matchLabelKeys with the pods' own
// label values.
func spreadSelector(constraint *v1.TopologySpreadConstraint, own labels.Set) (labels.Selector, error) {
	selector := constraint.LabelSelector.DeepCopy()
	for _, key := range constraint.MatchLabelKeys {
		if value, labelled := own[key]; labelled && selector != nil {
			selector.MatchExpressions = append(selector.MatchExpressions,
				metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpIn, Values: []string{value}})
		}
	}
	return metav1.LabelSelectorAsSelector(selector)
}
