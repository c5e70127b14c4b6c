package scheduler

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/helper"
	plugins "k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"github.com/k8s-1m/k8s-1m/internal/index"
)

// terms are what the pods of a class say of other pods, and other pods of them.
type terms struct {
	counters []counter
	// affinity and antiAffinity of the pod, with namespaces in the place of
	// selectors of namespaces.
	affinity, antiAffinity []fwk.AffinityTerm
	preferred              []weightedTerm
	namespaceLabels        labels.Set
	// forbid and prefer are the counters of what pods that are there say, by
	// topology key.
	forbid, prefer map[string]int
	// seen is how many kinds with terms the counters are made for.
	seen int
	// ignorePreferred says that what they prefer does not matter.
	ignorePreferred bool
}

// weightedTerm is a preference; one against has a weight below zero.
type weightedTerm struct {
	fwk.AffinityTerm
	weight int64
}

// counter is what one of the index's counters is for: a constraint of
// PodTopologySpread, or with nil a term of InterPodAffinity.
type counter struct {
	spread *spreadConstraint
}

// spreadConstraint is one that applies to the pods of a class.
type spreadConstraint struct {
	v1.TopologySpreadConstraint
	selector labels.Selector
	// keys that a node needs for its pods to count.
	keys []string
}

// eligible says whether pods on a node count.
func (c *counter) eligible(cl *class, node *v1.Node) bool {
	if c.spread == nil {
		return true
	}
	for _, key := range c.spread.keys {
		if _, labelled := node.Labels[key]; !labelled {
			return false
		}
	}
	if policy := c.spread.NodeAffinityPolicy; policy == nil || *policy == v1.NodeInclusionPolicyHonor {
		// As upstream: a malformed term is passed over.
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
	refer := append([]string(nil), cl.spec.Keys...)
	selected, err := nodeLabelKeys(&cl.pod.GetPod().Spec)
	if err != nil {
		return err
	}
	if cl.cluster.refer(append(refer, selected...)) {
		return errAgain
	}
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

func (cl *class) specifySpread() error {
	pod := cl.pod.GetPod()
	given, fallback := pod.Spec.TopologySpreadConstraints, cl.profile.defaultSelector(pod)
	if len(given) == 0 && fallback != nil {
		given = cl.profile.spread.defaults
	}
	cl.spec.AllKeys = len(pod.Spec.TopologySpreadConstraints) > 0 || !cl.profile.spread.system
	for _, action := range []v1.UnsatisfiableConstraintAction{v1.DoNotSchedule, v1.ScheduleAnyway} {
		var keys []string
		for i := range given {
			if given[i].WhenUnsatisfiable == action {
				keys = append(keys, given[i].TopologyKey)
			}
		}
		if action == v1.ScheduleAnyway && !cl.spec.AllKeys {
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
			cl.addSpread(constraint)
		}
	}
	return nil
}

func (cl *class) addSpread(constraint *spreadConstraint) {
	rules, skew := &cl.profile.spread, int64(constraint.MaxSkew)
	switch {
	case constraint.WhenUnsatisfiable == v1.DoNotSchedule && rules.filter:
		hard := index.HardSpread{Counter: cl.count(constraint.TopologyKey, constraint), MaxSkew: skew, MinDomains: 1}
		if constraint.MinDomains != nil {
			hard.MinDomains = int(*constraint.MinDomains)
		}
		if constraint.selector.Matches(labels.Set(cl.pod.GetPod().Labels)) {
			hard.Self = 1
		}
		cl.hostTerms = cl.hostTerms || constraint.TopologyKey == v1.LabelHostname
		cl.spec.Hard = append(cl.spec.Hard, hard)
	case constraint.WhenUnsatisfiable == v1.ScheduleAnyway && rules.score:
		soft := index.SoftSpread{Counter: cl.count(constraint.TopologyKey, constraint), MaxSkew: skew}
		cl.spec.Soft = append(cl.spec.Soft, soft)
	}
}

// spreadSelector is the selector of a constraint, narrowed by the values that the
// pod itself has for some labels.
func spreadSelector(constraint *v1.TopologySpreadConstraint, podLabels map[string]string) (labels.Selector, error) {
	selector, err := metav1.LabelSelectorAsSelector(constraint.LabelSelector)
	if err != nil {
		return nil, err
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

func (cl *class) specifyAffinity() error {
	rules, pod := &cl.profile.affinity, cl.pod.GetPod()
	if !rules.filter && !rules.score {
		return nil
	}
	t := &cl.terms
	t.forbid, t.prefer = map[string]int{}, map[string]int{}
	if namespace, err := rules.namespaces.Get(pod.Namespace); err == nil {
		t.namespaceLabels = namespace.Labels
	}
	if err := cl.ownTerms(); err != nil {
		return err
	}
	t.ignorePreferred = rules.ignoreExisting && len(t.preferred) == 0
	if rules.filter {
		for i := range t.affinity {
			cl.spec.Require = append(cl.spec.Require, cl.count(t.affinity[i].TopologyKey, nil))
		}
		cl.spec.SelfMatch = matchesAll(t.affinity, pod)
		for i := range t.antiAffinity {
			cl.forbidCounter(t.antiAffinity[i].TopologyKey)
		}
	}
	if rules.score {
		for i := range t.preferred {
			cl.preferCounter(t.preferred[i].TopologyKey)
		}
	}
	for _, number := range cl.cluster.names.withTerms {
		cl.kindTerms(&cl.cluster.names.kindOf[number], func(role role, key string, _ int64) {
			if role == forbids {
				cl.forbidCounter(key)
			} else {
				cl.preferCounter(key)
			}
		})
	}
	t.seen = len(cl.cluster.names.withTerms)
	_, forbidden := t.forbid[v1.LabelHostname]
	_, preferred := t.prefer[v1.LabelHostname]
	cl.hostTerms = cl.hostTerms || forbidden || preferred
	for i := range t.affinity {
		cl.hostTerms = cl.hostTerms || t.affinity[i].TopologyKey == v1.LabelHostname
	}
	return nil
}

func (cl *class) forbidCounter(key string) {
	if _, there := cl.terms.forbid[key]; !there {
		cl.terms.forbid[key] = cl.count(key, nil)
		cl.spec.Forbid = append(cl.spec.Forbid, cl.terms.forbid[key])
	}
}

func (cl *class) preferCounter(key string) {
	if _, there := cl.terms.prefer[key]; !there {
		cl.terms.prefer[key] = cl.count(key, nil)
		cl.spec.Prefer = append(cl.spec.Prefer, cl.terms.prefer[key])
	}
}

// ownTerms takes the terms of the pod; selectors of namespaces become namespaces.
func (cl *class) ownTerms() error {
	t, namespaces := &cl.terms, cl.profile.affinity.namespaces
	merged := func(term fwk.AffinityTerm) (fwk.AffinityTerm, error) {
		if term.NamespaceSelector.Empty() {
			return term, nil
		}
		found, err := namespaces.List(term.NamespaceSelector)
		if err != nil {
			return term, err
		}
		term.Namespaces = term.Namespaces.Clone()
		for _, namespace := range found {
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
			term, err := merged(term)
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
			own, err := merged(term.AffinityTerm)
			if err != nil {
				return err
			}
			t.preferred = append(t.preferred, weightedTerm{AffinityTerm: own, weight: list.sign * int64(term.Weight)})
		}
	}
	return nil
}

// role is what a counter that others' terms add to is for.
type role int

const (
	forbids role = iota
	prefers
)

// kindTerms hands on what pods of a kind say of the pods of the class: in which
// role, by topology key, and how much.
func (cl *class) kindTerms(k *kind, add func(role role, key string, by int64)) {
	t, pod, rules := &cl.terms, cl.pod.GetPod(), &cl.profile.affinity
	if rules.filter {
		required := k.info.GetRequiredAntiAffinityTerms()
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
		wanted := k.info.GetRequiredAffinityTerms()
		for i := range wanted {
			if wanted[i].Matches(pod, t.namespaceLabels) {
				add(prefers, wanted[i].TopologyKey, weight)
			}
		}
	}
	for sign, list := range map[int64][]fwk.WeightedAffinityTerm{
		1: k.info.GetPreferredAffinityTerms(), -1: k.info.GetPreferredAntiAffinityTerms(),
	} {
		for i := range list {
			if list[i].Matches(pod, t.namespaceLabels) {
				add(prefers, list[i].TopologyKey, sign*int64(list[i].Weight))
			}
		}
	}
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

// Stale says that pods have come with terms which the class has no counters for.
func (cl *class) Stale() bool {
	kinds := cl.cluster.names.withTerms
	stale := false
	for _, number := range kinds[cl.terms.seen:] {
		cl.kindTerms(&cl.cluster.names.kindOf[number], func(role role, key string, _ int64) {
			_, there := cl.counters(role)[key]
			stale = stale || !there
		})
	}
	cl.terms.seen = len(kinds)
	return stale
}

func (cl *class) spreadAmounts(k *kind, sums map[int]int64) {
	pod := k.info.GetPod()
	if k.terminating || pod.Namespace != cl.pod.GetPod().Namespace {
		return
	}
	for i := range cl.terms.counters {
		spread := cl.terms.counters[i].spread
		if spread != nil && !spread.selector.Empty() && spread.selector.Matches(labels.Set(pod.Labels)) {
			sums[i]++
		}
	}
}

func (cl *class) affinityAmounts(k *kind, sums map[int]int64) {
	t, pod, rules := &cl.terms, k.info.GetPod(), &cl.profile.affinity
	if rules.filter {
		if matchesAll(t.affinity, pod) {
			for _, i := range cl.spec.Require {
				sums[i]++
			}
		}
		for i := range t.antiAffinity {
			if t.antiAffinity[i].Matches(pod, nil) {
				sums[t.forbid[t.antiAffinity[i].TopologyKey]]++
			}
		}
	}
	if rules.score {
		for i := range t.preferred {
			if t.preferred[i].Matches(pod, nil) {
				sums[t.prefer[t.preferred[i].TopologyKey]] += t.preferred[i].weight
			}
		}
	}
	cl.kindTerms(k, func(role role, key string, by int64) {
		if i, there := cl.counters(role)[key]; there {
			sums[i] += by
		}
	})
}

// counters of what others' terms add to, by topology key.
func (cl *class) counters(role role) map[string]int {
	if role == prefers {
		return cl.terms.prefer
	}
	return cl.terms.forbid
}

func matchesAll(terms []fwk.AffinityTerm, pod *v1.Pod) bool {
	for i := range terms {
		if !terms[i].Matches(pod, nil) {
			return false
		}
	}
	return len(terms) > 0
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

// podTerms are all terms about other pods, required and preferred, for and against.
func podTerms(affinity *v1.Affinity) []v1.PodAffinityTerm {
	terms := slices.Concat(fwk.GetPodAffinityTerms(affinity), fwk.GetPodAntiAffinityTerms(affinity))
	var preferred []v1.WeightedPodAffinityTerm
	if affinity.PodAffinity != nil {
		preferred = append(preferred, affinity.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution...)
	}
	if affinity.PodAntiAffinity != nil {
		preferred = append(preferred, affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution...)
	}
	for i := range preferred {
		terms = append(terms, preferred[i].PodAffinityTerm)
	}
	return terms
}

// nodeLabelKeys are the keys of node labels that a pod selects by.
func nodeLabelKeys(spec *v1.PodSpec) ([]string, error) {
	var keys []string
	for key := range spec.NodeSelector {
		keys = append(keys, key)
	}
	add := func(term *v1.NodeSelectorTerm) {
		for i := range term.MatchExpressions {
			keys = append(keys, term.MatchExpressions[i].Key)
		}
	}
	fields := false
	if spec.Affinity != nil && spec.Affinity.NodeAffinity != nil {
		affinity := spec.Affinity.NodeAffinity
		if affinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
			terms := affinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
			for i := range terms {
				add(&terms[i])
				fields = fields || len(terms[i].MatchFields) > 0
			}
		}
		preferred := affinity.PreferredDuringSchedulingIgnoredDuringExecution
		for i := range preferred {
			add(&preferred[i].Preference)
			fields = fields || len(preferred[i].Preference.MatchFields) > 0
		}
	}
	for _, key := range keys {
		fields = fields || key == v1.LabelHostname
	}
	if fields {
		return nil, reasonNamedNodes
	}
	return keys, nil
}
