package scheduler

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
	plugins "k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"maps"
	"slices"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
)

// terms are what the pods of a class say of other pods, and other pods of them.
type terms struct {
	counters []counter
	// affinity and antiAffinity of the pod, with namespaces in the place of
	// selectors of namespaces.
	affinity, antiAffinity []fwk.AffinityTerm
	preferred              []weightedTerm
	namespaceLabels        labels.Set
	// avoid are the counters of the pod's own anti-affinity, by topology key; forbid
	// those of what pods that are there say; prefer those of what both prefer.
	avoid, forbid, prefer map[string]int
	// seen is how many kinds with terms the counters are made for.
	seen int
	// ignorePreferred says that what they prefer does not matter.
	ignorePreferred bool
}

// counter is what one of the index's counters is for: a constraint of
// PodTopologySpread, or with nil a term of InterPodAffinity.
type counter struct {
	spread *spreadConstraint
}

// specify says to the index what the pods of the class want.
func (cl *class) specify() error {
	cl.spec = index.Spec{
		Judge: cl, Normalized: cl.normalizedTerms(),
		SpreadWeight:   cl.profile.weights[plugins.PodTopologySpread],
		AffinityWeight: cl.profile.weights[plugins.InterPodAffinity],
	}
	if err := cl.specifySpread(); err != nil {
		return err
	}
	if err := cl.specifyAffinity(); err != nil {
		return err
	}
	if len(cl.terms.counters) > index.MaxCounters {
		return reasonConstraints
	}
	cl.cluster.refer(slices.Concat(cl.spec.Keys, nodeLabelKeys(&cl.pod.GetPod().Spec)))
	return nil
}

// count makes a counter for a topology key.
func (cl *class) count(key string, spread *spreadConstraint) int {
	number := len(cl.terms.counters)
	cl.terms.counters = append(cl.terms.counters, counter{spread: spread})
	cl.spec.Counters = append(cl.spec.Counters, index.Counter{Key: cl.keyIndex(key)})
	return number
}

func (cl *class) keyIndex(key string) int {
	if key == v1.LabelHostname {
		return index.HostKey
	}
	for i, known := range cl.spec.Keys {
		if known == key {
			return i
		}
	}
	cl.spec.Keys = append(cl.spec.Keys, key)
	return len(cl.spec.Keys) - 1
}

// Amounts that a pod of a kind adds to the counters of the class.
func (cl *class) Amounts(number index.KindID) []index.Amount {
	k := &cl.cluster.names.kindOf[number]
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

// ownSelectorKeys are the label keys that a pod's own selectors look at.
func ownSelectorKeys(pod *v1.Pod) sets.Set[string] {
	keys := sets.Set[string]{}
	add := func(selector *metav1.LabelSelector) {
		if selector == nil {
			return
		}
		for key := range selector.MatchLabels {
			keys.Insert(key)
		}
		for i := range selector.MatchExpressions {
			keys.Insert(selector.MatchExpressions[i].Key)
		}
	}
	for i := range pod.Spec.TopologySpreadConstraints {
		add(pod.Spec.TopologySpreadConstraints[i].LabelSelector)
		keys.Insert(pod.Spec.TopologySpreadConstraints[i].MatchLabelKeys...)
	}
	if affinity := pod.Spec.Affinity; affinity != nil {
		for _, term := range podTerms(affinity) {
			add(term.LabelSelector)
		}
	}
	return keys
}

// nodeTerms are what a pod says of nodes in its affinity, required and preferred.
func nodeTerms(spec *v1.PodSpec) []*v1.NodeSelectorTerm {
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil {
		return nil
	}
	var terms []*v1.NodeSelectorTerm
	affinity := spec.Affinity.NodeAffinity
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

// namesNodes says whether a pod selects nodes by their names, of which each node has
// its own.
func namesNodes(spec *v1.PodSpec) bool {
	if _, hostname := spec.NodeSelector[v1.LabelHostname]; hostname {
		return true
	}
	return slices.ContainsFunc(nodeTerms(spec), func(term *v1.NodeSelectorTerm) bool {
		return len(term.MatchFields) > 0 || slices.ContainsFunc(term.MatchExpressions, func(r v1.NodeSelectorRequirement) bool {
			return r.Key == v1.LabelHostname
		})
	})
}

// nodeLabelKeys are the keys of node labels that a pod selects by.
func nodeLabelKeys(spec *v1.PodSpec) []string {
	keys := slices.Collect(maps.Keys(spec.NodeSelector))
	for _, term := range nodeTerms(spec) {
		for i := range term.MatchExpressions {
			keys = append(keys, term.MatchExpressions[i].Key)
		}
	}
	return keys
}
