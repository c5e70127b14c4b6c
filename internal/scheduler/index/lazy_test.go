package index

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
)

// lazyFilter is a filter that accepts each node with a random probability. It fails if it is asked about a node twice.
type lazyFilter struct {
	t        *testing.T
	accepted map[NodeID]bool
	asked    map[NodeID]bool
}

func (w *world) newLazyFilter() *lazyFilter {
	f := &lazyFilter{t: w.t, accepted: map[NodeID]bool{}, asked: map[NodeID]bool{}}
	percent := []int{0, 5, 30, 70, 100}[w.rand.IntN(5)]
	for _, node := range w.nodes() {
		f.accepted[node] = w.rand.IntN(100) < percent
	}
	return f
}

func (f *lazyFilter) ask(node NodeID) (bool, error) {
	if f.asked[node] {
		f.t.Errorf("the filter was asked about node %d twice", node)
	}
	f.asked[node] = true
	return f.accepted[node], nil
}

// best returns the best nodes if the index knew the filter: all scores without the nodes that it rejects.
func (f *lazyFilter) best(class *Class) []NodeID {
	var rejected []Nominated
	for node, accepted := range f.accepted {
		if !accepted {
			rejected = append(rejected, Nominated{Node: node, Barred: true})
		}
	}
	var scores map[NodeID]int64
	class.WithNominated(rejected, func() { scores = class.Scores() })
	var best []NodeID
	for node, score := range scores {
		if len(best) > 0 && score > scores[best[0]] {
			best = nil
		}
		if len(best) == 0 || score == scores[best[0]] {
			best = append(best, node)
		}
	}
	return best
}

// TestLazyChoiceIsExact compares choices with a filter that is asked about single nodes with the choices of an index that knows
// which nodes the filter rejects.
func TestLazyChoiceIsExact(t *testing.T) {
	uncounted, chosen := 0, 0
	for seed := range uint64(20) {
		w := &world{t: t, rand: rand.New(rand.NewPCG(seed, 28)), index: New(), states: map[NodeID]State{}, pods: map[NodeID][]KindID{}}
		keys := []string{"plain", "soft", "hard", "forbid", "prefer"}
		for range 1500 {
			w.step()
			class, filter := w.class(keys[w.rand.IntN(len(keys))]), w.newLazyFilter()
			want := filter.best(class)
			lazy := Lazy{Ask: filter.ask, MaxCounted: []int{0, 5, 100}[w.rand.IntN(3)]}
			choice, fits, err := class.ChooseLazily(nil, lazy)
			switch {
			case errors.Is(err, ErrUncounted):
				uncounted++
				if len(class.Spec().Soft) == 0 || lazy.MaxCounted == 100 {
					t.Fatalf("seed %d: ChooseLazily() = error %v, want none", seed, err)
				}
			case err != nil || fits != (want != nil) || fits && !slices.Contains(want, choice.Node):
				t.Fatalf("seed %d: ChooseLazily() = node %d, %v, %v, want one of %v", seed, choice.Node, fits, err, want)
			case fits:
				chosen++
			}
			if err := class.Audit(); err != nil {
				t.Fatalf("seed %d: the class after the choice: %v", seed, err)
			}
		}
	}
	if uncounted < 20 || chosen < 5000 {
		t.Errorf("%d choices and %d refusals to count nodes, want at least 5000 and 20", chosen, uncounted)
	}
}

// TestSureLazyChoiceAsksAboutTheChosenNodeOnly has a filter of which the verdicts contain everything.
func TestSureLazyChoiceAsksAboutTheChosenNodeOnly(t *testing.T) {
	w := &world{t: t, rand: rand.New(rand.NewPCG(28, 1)), index: New(), states: map[NodeID]State{}, pods: map[NodeID][]KindID{}}
	for range 500 {
		w.step()
		class := w.class("soft")
		asked := 0
		choice, fits, err := class.ChooseLazily(nil, Lazy{Sure: true, Ask: func(NodeID) (bool, error) { asked++; return true, nil }})
		want, _ := class.Choose(nil, 0)
		if err != nil || fits && (asked != 1 || choice.Fitting != want.Fitting) {
			t.Fatalf("ChooseLazily() = %+v, %v after %d questions, want %d fitting nodes and one question", choice, err, asked, want.Fitting)
		}
	}
}

// TestLazyChoiceIsUniform draws among equal nodes of which a filter rejects some, first few and then most.
func TestLazyChoiceIsUniform(t *testing.T) {
	const nodes, draws = 60, 6000
	for _, accepted := range []int{50, 3} {
		w := &world{t: t, rand: rand.New(rand.NewPCG(28, 2)), index: New(), states: map[NodeID]State{}}
		for i := range nodes {
			w.set(NodeID(i), State{MilliCPU: int64(i % 7)})
		}
		chosen := make([]int, accepted)
		for range draws {
			choice, _, err := w.class("plain").ChooseLazily(nil, Lazy{Ask: func(node NodeID) (bool, error) { return int(node) < accepted, nil }})
			if err != nil {
				t.Fatal(err)
			}
			chosen[choice.Node]++
		}
		// The expected number is draws / accepted; six standard deviations are less than these limits.
		for node, times := range chosen {
			if mean := draws / accepted; times < mean*4/10 || times > mean*16/10 {
				t.Errorf("of %d accepted nodes, node %d was chosen %d times, want about %d", accepted, node, times, mean)
			}
		}
	}
}

// TestErrorOfLazyFilterEndsTheChoice has a filter that fails.
func TestErrorOfLazyFilterEndsTheChoice(t *testing.T) {
	w := &world{t: t, rand: rand.New(rand.NewPCG(28, 3)), index: New(), states: map[NodeID]State{}}
	w.set(0, State{})
	want := errors.New("failed")
	if _, _, err := w.class("plain").ChooseLazily(nil, Lazy{Ask: func(NodeID) (bool, error) { return false, want }}); !errors.Is(err, want) {
		t.Errorf("ChooseLazily() = error %v, want %v", err, want)
	}
}
