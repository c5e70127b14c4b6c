package rank

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	fwk "k8s.io/kube-scheduler/framework"
	pluginnames "k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
)

// terms are the affinity terms and spread constraints between the pods of a class and other pods.
type terms struct {
	// counters have the same positions as those of the Spec.
	counters []counter
	// affinity, antiAffinity and preferred are the pod's own terms, with namespaces in place of
	// namespace selectors. affinity and antiAffinity are required.
	affinity, antiAffinity []fwk.AffinityTerm
	preferred              []weightedTerm
	// namespaceLabels are the labels of the pod's namespace.
	namespaceLabels labels.Set
	// avoid are the counters of the pod's own required anti-affinity, by topology key. forbid are
	// those of the required anti-affinity of running pods. prefer are those of the preferred terms
	// of both.
	avoid, forbid, prefer map[string]int
	// seen is the value of [cache.Names.TermsEnd] for which the counters were made.
	seen int
	// ignorePreferred is true if the preferred terms of running pods do not count
	// (ignorePreferredTermsOfExistingPods).
	ignorePreferred bool
}

// counter tells what one of the index's counters is for: a constraint of PodTopologySpread, or a term of
// InterPodAffinity if spread is nil.
type counter struct {
	spread *spreadConstraint
}

// specify makes the Spec of the class for the index.
func (cl *Class) specify() error {
	cl.Spec = index.Spec{
		Judge: cl, Normalized: cl.normalizedTerms(),
		SpreadWeight:   cl.profile.weights[pluginnames.PodTopologySpread],
		AffinityWeight: cl.profile.weights[pluginnames.InterPodAffinity],
	}
	if err := cl.specifySpread(); err != nil {
		return err
	}
	if len(cl.terms.counters) > index.MaxSpreadCounters {
		return reasonConstraints
	}
	if err := cl.specifyAffinity(); err != nil {
		return err
	}
	if len(cl.terms.counters) > index.MaxCounters {
		return reasonConstraints
	}
	cl.cluster.ReferToLabels(slices.Concat(cl.Spec.Keys, nodeLabelKeys(&cl.pod.GetPod().Spec), cl.profile.addedAffinity.labelKeys, cl.sets.labels()))
	return nil
}

// addCounter adds a counter for a topology key to the Spec and returns its number.
func (cl *Class) addCounter(key string, spread *spreadConstraint) int {
	number := len(cl.terms.counters)
	cl.terms.counters = append(cl.terms.counters, counter{spread: spread})
	cl.Spec.Counters = append(cl.Spec.Counters, index.Counter{Key: cl.keyIndex(key)})
	return number
}

// keyIndex returns the position of a topology key in the Spec, and adds the key if necessary.
func (cl *Class) keyIndex(key string) int {
	if key == v1.LabelHostname {
		return index.HostKey
	}
	for i, known := range cl.Spec.Keys {
		if known == key {
			return i
		}
	}
	cl.Spec.Keys = append(cl.Spec.Keys, key)
	return len(cl.Spec.Keys) - 1
}

// Amounts returns the amounts that a pod of a kind adds to the counters of the class.
func (cl *Class) Amounts(number index.KindID) []index.Amount {
	k := &cl.cluster.Names.KindOf[number]
	sums := map[int]int64{}
	cl.spreadAmounts(k, sums)
	if rules := &cl.profile.affinity; rules.filter || rules.score {
		cl.affinityAmounts(k, sums)
	}
	amounts := make([]index.Amount, 0, len(sums))
	for i, by := range sums {
		if by != 0 {
			amounts = append(amounts, index.Amount{Counter: i, By: by})
		}
	}
	return amounts
}

// nodeTerms returns the node affinity terms of a pod, required and preferred.
func nodeTerms(spec *v1.PodSpec) []*v1.NodeSelectorTerm {
	if spec.Affinity == nil {
		return nil
	}
	return termsOf(spec.Affinity.NodeAffinity)
}

// termsOf returns the terms of a node affinity, required and preferred.
func termsOf(affinity *v1.NodeAffinity) []*v1.NodeSelectorTerm {
	if affinity == nil {
		return nil
	}
	var terms []*v1.NodeSelectorTerm
	if required := affinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		for i := range required.NodeSelectorTerms {
			terms = append(terms, &required.NodeSelectorTerms[i])
		}
	}
	preferred := affinity.PreferredDuringSchedulingIgnoredDuringExecution
	for i := range preferred {
		terms = append(terms, &preferred[i].Preference)
	}
	return terms
}

// NamesNodes returns whether a pod selects nodes by field (the node's name) or by hostname label, or has a node
// name already.
func NamesNodes(spec *v1.PodSpec) bool {
	_, hostname := spec.NodeSelector[v1.LabelHostname]
	return hostname || spec.NodeName != "" || nameNodes(nodeTerms(spec))
}

// nameNodes returns whether one of the terms selects nodes by field or by hostname label.
func nameNodes(terms []*v1.NodeSelectorTerm) bool {
	return slices.ContainsFunc(terms, func(term *v1.NodeSelectorTerm) bool {
		return len(term.MatchFields) > 0 || slices.ContainsFunc(term.MatchExpressions, func(r v1.NodeSelectorRequirement) bool {
			return r.Key == v1.LabelHostname
		})
	})
}

// nodeLabelKeys returns the keys of the node labels to which a pod's node selector and affinity refer.
func nodeLabelKeys(spec *v1.PodSpec) []string {
	return append(slices.Collect(maps.Keys(spec.NodeSelector)), labelKeys(nodeTerms(spec))...)
}

// labelKeys returns the keys of the node labels to which terms refer.
func labelKeys(terms []*v1.NodeSelectorTerm) []string {
	var keys []string
	for _, term := range terms {
		for i := range term.MatchExpressions {
			keys = append(keys, term.MatchExpressions[i].Key)
		}
	}
	return keys
}
