package rank

import (
	"iter"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// weightedTerm is a preferred affinity term. The weight of an anti-affinity term is negative.
type weightedTerm struct {
	fwk.AffinityTerm
	weight int64
}

// specifyAffinity adds the counters of InterPodAffinity to the Spec.
func (cl *Class) specifyAffinity() error {
	rules, pod := &cl.profile.affinity, cl.pod.GetPod()
	if !rules.filter && !rules.score {
		return nil
	}
	t := &cl.terms
	t.avoid, t.forbid, t.prefer = map[string]int{}, map[string]int{}, map[string]int{}
	if namespace, err := rules.namespaces.Get(pod.Namespace); err == nil {
		t.namespaceLabels = namespace.Labels
	}
	if err := cl.resolveOwnTerms(); err != nil {
		return err
	}
	t.ignorePreferred = rules.ignoreExisting && len(t.preferred) == 0
	if rules.filter {
		for i := range t.affinity {
			cl.Spec.Require = append(cl.Spec.Require, cl.addCounter(t.affinity[i].TopologyKey, nil))
		}
		cl.Spec.SelfMatch = matchesAll(t.affinity, pod)
		for i := range t.antiAffinity {
			cl.ensureCounter(t.avoid, &cl.Spec.Forbid, t.antiAffinity[i].TopologyKey)
		}
	}
	// For a pod without required terms, InterPodAffinity skips its filter if no running pod's
	// anti-affinity matches the pod, and then ignores nominated pods.
	cl.Spec.ForbidIfAny = len(t.affinity)+len(t.antiAffinity) == 0
	termKeys, err := cl.agreedTermKeys(cl.termKeys())
	if err != nil {
		return err
	}
	for _, key := range termKeys.Forbid {
		cl.ensureCounter(t.forbid, &cl.Spec.Forbid, key)
	}
	for _, key := range termKeys.Prefer {
		cl.ensureCounter(t.prefer, &cl.Spec.Prefer, key)
	}
	t.seen = cl.cluster.Names.TermsEnd()
	for _, byKey := range []map[string]int{t.avoid, t.forbid, t.prefer} {
		_, host := byKey[v1.LabelHostname]
		cl.countsByHostname = cl.countsByHostname || host
	}
	for i := range t.affinity {
		cl.countsByHostname = cl.countsByHostname || t.affinity[i].TopologyKey == v1.LabelHostname
	}
	return nil
}

// termKeys returns the topology keys for which the class needs counters.
func (cl *Class) termKeys() wire.TermKeys {
	forbid, prefer := sets.Set[string]{}, sets.Set[string]{}
	cl.eachTermKey(cl.cluster.Names.KindsWithTerms(), func(role role, key string) {
		switch {
		case !cl.cluster.Carries(key):
			// Upstream ignores the term, too: no pod is on a node with this label.
		case role == forbids:
			forbid.Insert(key)
		default:
			prefer.Insert(key)
		}
	})
	return wire.TermKeys{Forbid: sets.List(forbid), Prefer: sets.List(prefer)}
}

// eachTermKey calls add for each topology key of the pod's preferred terms, and of those terms of pod kinds that
// match the pod. A pod of this class that the leader places affects later pods of the class, so with replicas its
// own kind is included.
func (cl *Class) eachTermKey(kinds iter.Seq[*cache.Kind], add func(role role, key string)) {
	if cl.profile.affinity.score {
		for i := range cl.terms.preferred {
			add(prefers, cl.terms.preferred[i].TopologyKey)
		}
	}
	addTerm := func(role role, key string, _ int64) { add(role, key) }
	if cl.agreed != nil {
		cl.kindTerms(&cache.Kind{Info: cl.pod}, addTerm)
	}
	for kind := range kinds {
		cl.kindTerms(kind, addTerm)
	}
}

// ensureCounter adds a counter for a topology key to byKey and to list, unless byKey has one.
func (cl *Class) ensureCounter(byKey map[string]int, list *[]int, key string) {
	if _, exists := byKey[key]; !exists {
		byKey[key] = cl.addCounter(key, nil)
		*list = append(*list, byKey[key])
	}
}

// resolveOwnTerms copies the pod's terms into cl.terms. It replaces namespace selectors by the namespaces
// that they select.
func (cl *Class) resolveOwnTerms() error {
	t, namespaces := &cl.terms, cl.profile.affinity.namespaces
	resolve := func(term fwk.AffinityTerm) (fwk.AffinityTerm, error) {
		if term.NamespaceSelector.Empty() {
			return term, nil
		}
		selected, err := namespaces.List(term.NamespaceSelector)
		if err != nil {
			return term, err
		}
		term.Namespaces = term.Namespaces.Clone()
		for _, namespace := range selected {
			term.Namespaces.Insert(namespace.Name)
		}
		term.NamespaceSelector = labels.Nothing()
		return term, nil
	}
	for _, list := range []struct {
		from []fwk.AffinityTerm
		to   *[]fwk.AffinityTerm
	}{{cl.pod.GetRequiredAffinityTerms(), &t.affinity}, {cl.pod.GetRequiredAntiAffinityTerms(), &t.antiAffinity}} {
		for _, term := range list.from {
			term, err := resolve(term)
			if err != nil {
				return err
			}
			*list.to = append(*list.to, term)
		}
	}
	for _, list := range []struct {
		from []fwk.WeightedAffinityTerm
		sign int64
	}{{cl.pod.GetPreferredAffinityTerms(), 1}, {cl.pod.GetPreferredAntiAffinityTerms(), -1}} {
		for _, term := range list.from {
			own, err := resolve(term.AffinityTerm)
			if err != nil {
				return err
			}
			t.preferred = append(t.preferred, weightedTerm{AffinityTerm: own, weight: list.sign * int64(term.Weight)})
		}
	}
	return nil
}

// role tells how a term of a running pod affects the pods of the class.
type role int

const (
	forbids role = iota
	prefers
)

// kindTerms calls add for each term of a pod kind that matches the pods of the class, with the role, the
// topology key and the weight of the term.
func (cl *Class) kindTerms(k *cache.Kind, add func(role role, key string, by int64)) {
	t, pod, rules := &cl.terms, cl.pod.GetPod(), &cl.profile.affinity
	if rules.filter {
		required := k.Info.GetRequiredAntiAffinityTerms()
		for i := range required {
			if required[i].Matches(pod, t.namespaceLabels) {
				add(forbids, required[i].TopologyKey, 1)
			}
		}
	}
	if !rules.score || t.ignorePreferred {
		return
	}
	if weight := cl.profile.affinity.hardWeight; weight > 0 {
		wanted := k.Info.GetRequiredAffinityTerms()
		for i := range wanted {
			if wanted[i].Matches(pod, t.namespaceLabels) {
				add(prefers, wanted[i].TopologyKey, weight)
			}
		}
	}
	for sign, list := range map[int64][]fwk.WeightedAffinityTerm{
		1: k.Info.GetPreferredAffinityTerms(), -1: k.Info.GetPreferredAntiAffinityTerms(),
	} {
		for i := range list {
			if list[i].Matches(pod, t.namespaceLabels) {
				add(prefers, list[i].TopologyKey, sign*int64(list[i].Weight))
			}
		}
	}
}

// Stale returns whether there are terms by now for which the class has no counters. A class whose nodes are
// evaluated one by one is always stale.
func (cl *Class) Stale() bool {
	if cl.agreed != nil && cl.agreed.PerNode {
		// A volume or claim of the pod may have been bound, or another pod may use it, since the
		// class was made.
		return true
	}
	names, stale := &cl.cluster.Names, false
	if end := names.TermsEnd(); cl.terms.seen < end {
		cl.eachTermKey(names.KindsSince(cl.terms.seen), func(role role, key string) {
			_, exists := cl.counters(role)[key]
			stale = stale || !exists && cl.cluster.Carries(key)
		})
		cl.terms.seen = end
	}
	return stale
}

// affinityAmounts adds to sums, by counter, the amounts that a pod of a kind adds to the counters of
// InterPodAffinity.
func (cl *Class) affinityAmounts(k *cache.Kind, sums map[int]int64) {
	t, pod, rules := &cl.terms, k.Info.GetPod(), &cl.profile.affinity
	if rules.filter {
		if matchesAll(t.affinity, pod) {
			for _, i := range cl.Spec.Require {
				sums[i]++
			}
		}
		for i := range t.antiAffinity {
			if t.antiAffinity[i].Matches(pod, nil) {
				sums[t.avoid[t.antiAffinity[i].TopologyKey]]++
			}
		}
	}
	if rules.score {
		for i := range t.preferred {
			// There is no counter for a key that no node carries.
			if number, exists := t.prefer[t.preferred[i].TopologyKey]; exists && t.preferred[i].Matches(pod, nil) {
				sums[number] += t.preferred[i].weight
			}
		}
	}
	cl.kindTerms(k, func(role role, key string, by int64) {
		if i, exists := cl.counters(role)[key]; exists {
			sums[i] += by
		}
	})
}

// counters returns the counters of a role, by topology key.
func (cl *Class) counters(role role) map[string]int {
	if role == prefers {
		return cl.terms.prefer
	}
	return cl.terms.forbid
}

// matchesAll returns whether a pod matches all terms. It returns false if there are no terms.
func matchesAll(terms []fwk.AffinityTerm, pod *v1.Pod) bool {
	for i := range terms {
		if !terms[i].Matches(pod, nil) {
			return false
		}
	}
	return len(terms) > 0
}
