package verify

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
)

// checkAntiAffinity checks the required anti-affinity terms of all classes: the domain of a pod
// with a term must contain no other pod that the term selects. The order in which the two pods
// were bound does not matter.
func (c *Cluster) checkAntiAffinity() error {
	terms := map[string]*antiAffinityTerm{}
	for _, class := range c.classList {
		affinity := class.spec.Affinity
		if affinity == nil || affinity.PodAntiAffinity == nil {
			continue
		}
		for i := range affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
			term, err := c.antiAffinityTerm(class, &affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[i])
			if err != nil {
				return fmt.Errorf("anti-affinity of pods in %s: %w", class.namespace, err)
			}
			if terms[term.text] == nil {
				terms[term.text] = term
			}
			terms[term.text].classes = append(terms[term.text].classes, class)
		}
	}
	for _, term := range terms {
		c.checkAntiAffinityTerm(term)
	}
	return nil
}

// antiAffinityTerm is a required term, with the classes that have it.
type antiAffinityTerm struct {
	text       string // identifies the term: equal terms have equal texts
	key        string // topology key
	selector   labels.Selector
	namespaces sets.Set[string]
	classes    []*podClass
}

// antiAffinityTerm resolves the selectors of a term in pods of a class.
func (c *Cluster) antiAffinityTerm(class *podClass, term *v1.PodAffinityTerm) (*antiAffinityTerm, error) {
	// The API server has already merged matchLabelKeys into the selector.
	selector, err := metav1.LabelSelectorAsSelector(term.LabelSelector)
	if err != nil {
		return nil, err
	}
	result := &antiAffinityTerm{key: term.TopologyKey, selector: selector, namespaces: sets.New(term.Namespaces...)}
	if len(term.Namespaces) == 0 && term.NamespaceSelector == nil {
		result.namespaces.Insert(class.namespace)
	}
	if term.NamespaceSelector != nil {
		namespaceSelector, err := metav1.LabelSelectorAsSelector(term.NamespaceSelector)
		if err != nil {
			return nil, err
		}
		for name, labels := range c.namespaces {
			if namespaceSelector.Matches(labels) {
				result.namespaces.Insert(name)
			}
		}
	}
	result.text = fmt.Sprintf("%q %q %q", result.key, selector, sets.List(result.namespaces))
	return result, nil
}

// checkAntiAffinityTerm reports the pods that have the term and share a domain with a selected pod.
func (c *Cluster) checkAntiAffinityTerm(term *antiAffinityTerm) {
	selected := map[string][]*boundPod{}
	for _, class := range c.classList {
		if !term.namespaces.Has(class.namespace) || !term.selector.Matches(class.labels) {
			continue
		}
		for i := range class.pods {
			// Two pods of each domain suffice, because one of them is not the pod with the term.
			if domain, labelled := c.domain(&class.pods[i], term.key); labelled && len(selected[domain]) < 2 {
				selected[domain] = append(selected[domain], &class.pods[i])
			}
		}
	}
	for _, class := range term.classes {
		for i := range class.pods {
			pod := &class.pods[i]
			domain, labelled := c.domain(pod, term.key)
			if !labelled {
				continue
			}
			if other := slices.IndexFunc(selected[domain], func(other *boundPod) bool { return other != pod }); other >= 0 {
				other := selected[domain][other]
				c.reportViolation(AntiAffinity, &c.nodes[pod.node], pod, "its anti-affinity excludes %s/%s, which is also in %s=%s", other.class.namespace, other.name, term.key, domain)
			}
		}
	}
}

// domain returns the value of a topology key on a pod's node; false if the node has no such label.
func (c *Cluster) domain(pod *boundPod, key string) (string, bool) {
	value, labelled := c.nodes[pod.node].object.Labels[key]
	return value, labelled
}
