package rank

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
)

// namesIn returns the names and hostnames of the nodes that a node selector may select. It returns false if it may select
// others. byField is true if the names of nodes count, besides their hostnames.
func namesIn(selector *v1.NodeSelector, byField bool) (sets.Set[string], bool) {
	names := sets.New[string]()
	for i := range selector.NodeSelectorTerms {
		term := &selector.NodeSelectorTerms[i]
		values, named := valuesOf(term.MatchExpressions, v1.LabelHostname)
		if !named && byField {
			values, named = valuesOf(term.MatchFields, metav1.ObjectNameField)
		}
		if !named {
			return nil, false
		}
		names.Insert(values...)
	}
	return names, true
}

// valuesOf returns the values of the first requirement that a key has one of them.
func valuesOf(requirements []v1.NodeSelectorRequirement, key string) ([]string, bool) {
	for i := range requirements {
		if requirements[i].Key == key && requirements[i].Operator == v1.NodeSelectorOpIn {
			return requirements[i].Values, true
		}
	}
	return nil, false
}

// namedByPod returns the names and hostnames of the only nodes on which a pod may run according to its node selector and
// its required node affinity. It returns false if these do not name nodes.
func namedByPod(spec *v1.PodSpec) (sets.Set[string], bool) {
	switch host, selected := spec.NodeSelector[v1.LabelHostname]; {
	case spec.NodeName != "":
		return sets.New(spec.NodeName), true
	case selected:
		return sets.New(host), true
	case spec.Affinity == nil || spec.Affinity.NodeAffinity == nil || spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil:
		return nil, false
	}
	return namesIn(spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution, true)
}

// admitted returns the nodes that satisfy conditions on labels. It looks at all nodes.
func admitted(c *cache.Cluster, required nodeSets) (nodes []*cache.Node) {
	for _, n := range c.Nodes {
		if n.Position >= 0 && required.refuse(n.Info.Node().Labels) == nil {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// candidates returns the nodes that have one of the given names or hostnames. A node may have the hostname of another one,
// so it returns more nodes than the selectors select.
func candidates(c *cache.Cluster, names sets.Set[string]) []*cache.Node {
	found := map[*cache.Node]bool{}
	for name := range names {
		if n := c.Lookup(name); n != nil {
			found[n] = true
		}
		for _, n := range c.WithHostname(name) {
			found[n] = true
		}
	}
	nodes := make([]*cache.Node, 0, len(found))
	for n := range found {
		nodes = append(nodes, n)
	}
	return nodes
}
