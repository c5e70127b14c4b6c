package cache

import (
	"iter"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// activeTerms are the pod kinds whose affinity terms count: those with terms of which there is a pod on a node, or a
// nominated pod. Kinds of other pods, for example of pods that fit on no node, must not affect the classes of other
// pods, because anybody may create them.
type activeTerms struct {
	kinds sets.Set[index.KindID]
	// nominated are those kinds that count because of nominated pods.
	nominated sets.Set[index.KindID]
	// log has the kinds in the order in which they began to count. Older entries were dropped: first is the
	// number of the oldest one.
	log   []index.KindID
	first int
	// awaited are topology keys of terms that are ignored because no node has such a label.
	awaited sets.Set[string]
	// remote are labels of nodes that other replicas own. Only the leader has them.
	remote sets.Set[string]
}

// minTermLog is the number of entries that the log may have, however few kinds count.
const minTermLog = 64

func newActiveTerms() activeTerms {
	return activeTerms{kinds: sets.New[index.KindID](), nominated: sets.New[index.KindID](), awaited: sets.New[string](), remote: sets.New[string]()}
}

// add makes the terms of a kind count.
func (t *activeTerms) add(kind index.KindID) {
	t.kinds.Insert(kind)
	if len(t.log) >= max(minTermLog, 2*len(t.kinds)) {
		half := len(t.log) / 2
		t.first += half
		t.log = t.log[:copy(t.log, t.log[half:])]
	}
	t.log = append(t.log, kind)
}

// recheckAll makes each class check all terms again.
func (t *activeTerms) recheckAll() {
	t.first += len(t.log) + 1
	t.log = t.log[:0]
}

// count adds to the number of pods of a kind that affect other pods.
func (n *Names) count(number index.KindID, by int) {
	k := &n.KindOf[number]
	if !k.terms {
		return
	}
	before := k.pods
	k.pods += by
	switch {
	case before == 0 && k.pods > 0:
		if !k.visible {
			n.addVisibleLabels(k.Info.GetPod())
			k.visible = true
		}
		n.active.add(number)
	case k.pods == 0:
		n.active.kinds.Delete(number)
	}
}

// CountNominated makes the terms of the given pod kinds count, because pods of these kinds are nominated to nodes.
// The kinds of the previous call count no longer because of nominated pods.
func (n *Names) CountNominated(kinds sets.Set[index.KindID]) {
	for kind := range kinds {
		if !n.active.nominated.Has(kind) {
			n.count(kind, 1)
		}
	}
	for kind := range n.active.nominated {
		if !kinds.Has(kind) {
			n.count(kind, -1)
		}
	}
	n.active.nominated = kinds
}

// TermsEnd returns a number that increases when a class has to check whether it has a counter for each term.
func (n *Names) TermsEnd() int { return n.active.first + len(n.active.log) }

// KindsWithTerms returns the kinds whose affinity terms count.
func (n *Names) KindsWithTerms() iter.Seq[*Kind] {
	return func(yield func(*Kind) bool) {
		for number := range n.active.kinds {
			if !yield(&n.KindOf[number]) {
				return
			}
		}
	}
}

// KindsSince returns at least the kinds whose terms count and did not count when TermsEnd had the given value.
func (n *Names) KindsSince(end int) iter.Seq[*Kind] {
	if end < n.active.first {
		return n.KindsWithTerms()
	}
	return func(yield func(*Kind) bool) {
		for _, number := range n.active.log[end-n.active.first:] {
			if n.active.kinds.Has(number) && !yield(&n.KindOf[number]) {
				return
			}
		}
	}
}

// Carries returns whether a node may have a label. It always returns true for usual labels, so that owners need not
// report them to the leader, which has no nodes. After it has returned false, classes check all terms again when a
// node gets the label.
func (c *Cluster) Carries(label string) bool {
	if isUsual(label) || c.labelled[label] != nil || c.Names.active.remote.Has(label) {
		return true
	}
	c.Names.active.awaited.Insert(label)
	return false
}

// NoteCarried records topology keys that owners have reported, so that they need not report them for each class.
func (n *Names) NoteCarried(keys wire.TermKeys) {
	n.active.remote.Insert(keys.Forbid...)
	n.active.remote.Insert(keys.Prefer...)
}

// noteFirstCarrier makes classes check all terms again if one of them has ignored a label that a node has now.
func (n *Names) noteFirstCarrier(label string) {
	if n.active.awaited.Has(label) {
		n.active.awaited.Delete(label)
		n.active.recheckAll()
	}
}
