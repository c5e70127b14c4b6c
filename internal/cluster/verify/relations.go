package verify

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
)

// checkSpread looks at each hard constraint of a class. What is shown to be broken is
// that the pods with the constraint alone are ahead of the emptiest domain: other
// pods may have come later, and did not have to care.
func (c *Cluster) checkSpread() error {
	groups := map[string]*spreadGroup{}
	for _, class := range c.order {
		for i := range class.spec.TopologySpreadConstraints {
			constraint := &class.spec.TopologySpreadConstraints[i]
			if constraint.WhenUnsatisfiable != v1.DoNotSchedule {
				continue
			}
			selector, err := spreadSelector(constraint, class.labels)
			if err != nil {
				return fmt.Errorf("the spread of pods in %s: %w", class.namespace, err)
			}
			// A pod that does not count itself is not ahead because of itself.
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
			groups[key].carriers = append(groups[key].carriers, class)
		}
	}
	for _, group := range groups {
		if err := c.checkSpreadGroup(group); err != nil {
			return err
		}
	}
	return nil
}

// spreadGroup is the classes that share a constraint, with all that decides which
// nodes and pods count.
type spreadGroup struct {
	constraint *v1.TopologySpreadConstraint
	selector   labels.Selector
	of         *class
	carriers   []*class
}

func (g *spreadGroup) key() (string, error) {
	about := []any{g.constraint, g.of.namespace, g.selector.String(), g.keys()}
	if g.honorsAffinity() {
		about = append(about, g.of.spec.NodeSelector)
		if affinity := g.of.spec.Affinity; affinity != nil {
			about = append(about, affinity.NodeAffinity)
		}
	}
	if g.honorsTaints() {
		about = append(about, g.of.spec.Tolerations)
	}
	key, err := json.Marshal(about)
	return string(key), err
}

// keys are those that a node needs to count.
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

// eligible says whether a node is one of those to spread over.
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
	return !g.honorsTaints() || len(untolerated(g.of, node, keepsAway)) == 0, nil
}

func (c *Cluster) checkSpreadGroup(g *spreadGroup) error {
	key := g.constraint.TopologyKey
	counts := map[string]int{}
	eligible := make([]bool, len(c.nodes))
	for i := range c.nodes {
		is, err := g.eligible(c.nodes[i].object)
		if err != nil {
			return fmt.Errorf("the node affinity of pods in %s: %w", g.of.namespace, err)
		}
		if eligible[i] = is; is {
			counts[c.nodes[i].object.Labels[key]] += 0
		}
	}
	for _, class := range c.order {
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
	ahead := map[string]int{}
	for _, class := range g.carriers {
		for i := range class.pods {
			pod := &class.pods[i]
			if !eligible[pod.node] || pod.terminating {
				continue
			}
			domain := c.nodes[pod.node].object.Labels[key]
			if ahead[domain]++; ahead[domain]-least > int(g.constraint.MaxSkew) {
				c.broken(Spread, &c.nodes[pod.node], pod, "%d pods with its constraint in %s=%s, %d in the emptiest; at most %d more are allowed",
					ahead[domain], key, domain, least, g.constraint.MaxSkew)
			}
		}
	}
	return nil
}

// spreadSelector is the selector of a constraint, narrowed by the values that its
// pods have for some labels.
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

// checkAntiAffinity looks at each required term of a class: where there is a pod with
// it, there must be no other pod that it is against. That covers both directions,
// because it does not matter who came first.
func (c *Cluster) checkAntiAffinity() error {
	terms := map[string]*antiTerm{}
	for _, class := range c.order {
		affinity := class.spec.Affinity
		if affinity == nil || affinity.PodAntiAffinity == nil {
			continue
		}
		for i := range affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
			term, err := c.antiTerm(class, &affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[i])
			if err != nil {
				return fmt.Errorf("the anti-affinity of pods in %s: %w", class.namespace, err)
			}
			if terms[term.text] == nil {
				terms[term.text] = term
			}
			terms[term.text].carriers = append(terms[term.text].carriers, class)
		}
	}
	for _, term := range terms {
		c.checkTerm(term)
	}
	return nil
}

// antiTerm is a term, with the classes that have it.
type antiTerm struct {
	text       string
	key        string
	selector   labels.Selector
	namespaces sets.Set[string]
	carriers   []*class
}

func (c *Cluster) antiTerm(of *class, term *v1.PodAffinityTerm) (*antiTerm, error) {
	// The API server has put matchLabelKeys into the selector.
	selector, err := metav1.LabelSelectorAsSelector(term.LabelSelector)
	if err != nil {
		return nil, err
	}
	made := &antiTerm{key: term.TopologyKey, selector: selector, namespaces: sets.New(term.Namespaces...)}
	if len(term.Namespaces) == 0 && term.NamespaceSelector == nil {
		made.namespaces.Insert(of.namespace)
	}
	if term.NamespaceSelector != nil {
		chosen, err := metav1.LabelSelectorAsSelector(term.NamespaceSelector)
		if err != nil {
			return nil, err
		}
		for name, labels := range c.namespaces {
			if chosen.Matches(labels) {
				made.namespaces.Insert(name)
			}
		}
	}
	made.text = fmt.Sprintf("%q %q %q", made.key, selector, sets.List(made.namespaces))
	return made, nil
}

func (c *Cluster) checkTerm(term *antiTerm) {
	against := map[string][]*placed{}
	for _, class := range c.order {
		if !term.namespaces.Has(class.namespace) || !term.selector.Matches(class.labels) {
			continue
		}
		for i := range class.pods {
			// Two of them are enough to find one that is another pod.
			if domain, labelled := c.domain(&class.pods[i], term.key); labelled && len(against[domain]) < 2 {
				against[domain] = append(against[domain], &class.pods[i])
			}
		}
	}
	for _, class := range term.carriers {
		for i := range class.pods {
			pod := &class.pods[i]
			domain, labelled := c.domain(pod, term.key)
			if !labelled {
				continue
			}
			if other := slices.IndexFunc(against[domain], func(other *placed) bool { return other != pod }); other >= 0 {
				other := against[domain][other]
				c.broken(AntiAffinity, &c.nodes[pod.node], pod, "it must not share %s=%s with %s/%s", term.key, domain, other.class.namespace, other.name)
			}
		}
	}
}

// domain is the value of a topology key where a pod is.
func (c *Cluster) domain(pod *placed, key string) (string, bool) {
	value, labelled := c.nodes[pod.node].object.Labels[key]
	return value, labelled
}
