package index

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// world has nodes in an index and, as a model of the index, in maps.
type world struct {
	t      *testing.T
	rand   *rand.Rand
	index  *Index
	states map[NodeID]State
	pods   map[NodeID][]KindID
}

// judge is a Judge whose score is the requested memory and whose counters count pods by
// kind.
type judge struct{ w *world }

const (
	shapes = 6
	kinds  = 4
)

func (judge) Verdict(_ NodeID, state *State) (Verdict, error) {
	return Verdict{
		Fits: state.Pods < 5, Static: 100 - state.Memory,
		Raw: []int64{int64(state.Shape % 2)}, ImageSet: int32(state.Shape % 3),
	}, nil
}

// Topology returns one of three topology values or none; the last shape has no host value.
func (judge) Topology(shape ShapeID) Topology {
	return Topology{Values: []int32{int32(shape % 4)}, Host: shape != shapes-1, Eligible: ^uint64(0)}
}

// Amounts adds each kind to one counter with HostKey and one counter by value.
func (judge) Amounts(kind KindID) []Amount {
	return []Amount{{Counter: int(kind) % 2, By: 1}, {Counter: 2 + int(kind)%2, By: int64(kind) - 1}}
}

func (judge) Stale() bool                     { return false }
func (judge) ImageScore(imageSet int32) int64 { return 10 * int64(imageSet) }

// specs returns classes that use counters for different constraints.
func (w *world) specs() map[string]Spec {
	counters := []Counter{{HostKey}, {0}, {HostKey}, {0}}
	base := Spec{
		Judge: judge{w}, Keys: []string{"zone"}, Counters: counters, SpreadWeight: 2, AffinityWeight: 2,
		Normalized: []Normalized{{Weight: 3, Reverse: true}},
	}
	plain, soft, hard, forbid, prefer := base, base, base, base, base
	plain.Counters = nil
	soft.Soft = []SoftSpread{{Counter: 0, MaxSkew: 3}, {Counter: 1, MaxSkew: 5}}
	hard.Hard = []HardSpread{{Counter: 0, MaxSkew: 1, MinDomains: 1, Self: 1}, {Counter: 1, MaxSkew: 2, MinDomains: 2, Self: 1}}
	forbid.Forbid, forbid.Require = []int{0}, []int{1}
	forbid.SelfMatch = true
	prefer.Prefer = []int{2, 3}
	return map[string]Spec{"plain": plain, "soft": soft, "hard": hard, "forbid": forbid, "prefer": prefer}
}

func (w *world) class(key string) *Class {
	class, err := w.index.Class(key, func() (Spec, error) { return w.specs()[key], nil })
	if err != nil {
		w.t.Fatal(err)
	}
	return class
}

func (w *world) nodes() []NodeID {
	nodes := make([]NodeID, 0, len(w.states))
	for node := range w.states {
		nodes = append(nodes, node)
	}
	slices.Sort(nodes)
	return nodes
}

// step makes a random change to a node.
func (w *world) step() {
	node := NodeID(w.rand.IntN(40))
	state, exists := w.states[node]
	switch n := w.rand.IntN(10); {
	case !exists:
		w.set(node, State{Shape: ShapeID(w.rand.IntN(shapes))})
	case n == 0:
		w.index.Remove(node)
		delete(w.states, node)
		delete(w.pods, node)
	case n == 1:
		state.Shape = ShapeID(w.rand.IntN(shapes))
		w.set(node, state)
	case n < 5 && len(w.pods[node]) > 0:
		kind := w.pods[node][0]
		w.pods[node] = w.pods[node][1:]
		w.index.RemovePod(node, kind)
		state.Pods, state.Memory = state.Pods-1, state.Memory-1
		w.set(node, state)
	default:
		kind := KindID(w.rand.IntN(kinds))
		w.pods[node] = append(w.pods[node], kind)
		w.index.AddPod(node, kind)
		// Random CPU makes states that no other node has.
		state.Pods, state.Memory = state.Pods+1, state.Memory+1
		state.MilliCPU = int64(w.rand.IntN(30))
		w.set(node, state)
	}
}

// set adds or replaces a node in the index and the model.
func (w *world) set(node NodeID, state State) {
	w.states[node] = state
	w.index.Place(node, state)
}

// TestIncrementalUpdatesEqualRebuild compares classes that follow changes with rebuilt classes. The
// change log is short and unused states are swept often.
func TestIncrementalUpdatesEqualRebuild(t *testing.T) {
	for seed := range uint64(20) {
		w := &world{t: t, rand: rand.New(rand.NewPCG(seed, 1)), index: New(), states: map[NodeID]State{}, pods: map[NodeID][]KindID{}}
		w.index.spare, w.index.log.least = 5, 30
		keys := []string{"plain", "soft", "hard", "forbid", "prefer"}
		swept := 0
		for range 3000 {
			before := len(w.index.states)
			w.step()
			if len(w.index.states) < before {
				swept++
			}
			if w.rand.IntN(5) > 0 {
				continue
			}
			key := keys[w.rand.IntN(len(keys))]
			class := w.class(key)
			if err := class.Audit(); err != nil {
				t.Fatalf("seed %d: auditing class %s: %v", seed, key, err)
			}
			w.chooseWithBarredNodes(class)
		}
		if swept == 0 {
			t.Fatalf("seed %d: no unused state was swept", seed)
		}
		if got, want := w.index.Len(), len(w.states); got != want {
			t.Fatalf("seed %d: Len() = %d, want %d", seed, got, want)
		}
	}
}

// chooseWithBarredNodes chooses a node while some nodes are barred, and checks that a node that is
// not barred is chosen if one fits.
func (w *world) chooseWithBarredNodes(class *Class) {
	all, fitting := w.nodes(), 0
	barred := map[NodeID]bool{}
	for _, node := range all {
		if w.rand.IntN(4) == 0 {
			barred[node] = true
		}
		if !barred[node] && class.Fits(node) {
			fitting++
		}
	}
	var nominated []Nominated
	for node := range barred {
		nominated = append(nominated, Nominated{Node: node, Barred: true})
	}
	choice, fits := class.Choose(nominated, w.rand.IntN(5))
	if fits != (fitting > 0) || choice.Fitting != fitting {
		w.t.Fatalf("Choose() = %d fitting nodes, %v, want %d, %v", choice.Fitting, fits, fitting, fitting > 0)
	}
	if fits && (barred[choice.Node] || !slices.Contains(all, choice.Node)) {
		w.t.Fatalf("Choose() = node %d, want one of %v except %v", choice.Node, all, barred)
	}
}

// TestChooseSamplesNodes checks how often the best nodes are chosen from samples, and that no node
// is chosen that cannot be the best one of a sample.
func TestChooseSamplesNodes(t *testing.T) {
	w := &world{t: t, rand: rand.New(rand.NewPCG(3, 3)), index: New(), states: map[NodeID]State{}}
	const nodes, sample, draws = 50, 10, 4000
	for i := range nodes {
		w.set(NodeID(i), State{Memory: int64(i)})
	}
	chosen := make([]int, nodes)
	for range draws {
		choice, _ := w.class("plain").Choose(nil, sample)
		chosen[choice.Node]++
	}
	// A fifth of all samples contain the best node; six standard deviations are allowed.
	if best := chosen[0]; best < 650 || best > 950 {
		t.Errorf("the best node was chosen in %d of %d samples, want 650 to 950", best, draws)
	}
	if second := chosen[1]; second < 510 || second > 790 {
		t.Errorf("the second best node was chosen in %d of %d samples, want 510 to 790", second, draws)
	}
	for node, times := range chosen[nodes-sample+1:] {
		if times > 0 {
			t.Errorf("node %d was chosen %d times, want 0, because every sample has a better node", nodes-sample+1+node, times)
		}
	}
}

// TestChooseEqualsScan compares the choice of a class without counters with a scan of all nodes.
func TestChooseEqualsScan(t *testing.T) {
	w := &world{t: t, rand: rand.New(rand.NewPCG(7, 7)), index: New(), states: map[NodeID]State{}, pods: map[NodeID][]KindID{}}
	chosen := map[NodeID]bool{}
	for range 5000 {
		w.step()
		best, total := []NodeID(nil), int64(-1)
		most := int64(0)
		for _, state := range w.states {
			if state.Pods < 5 {
				most = max(most, int64(state.Shape%2))
			}
		}
		for _, node := range w.nodes() {
			state := w.states[node]
			if state.Pods >= 5 {
				continue
			}
			raw := int64(state.Shape % 2)
			if most > 0 {
				raw = 100 * raw / most
			}
			score := 100 - state.Memory + 3*(100-raw) + 10*int64(state.Shape%3)
			if score > total {
				best, total = nil, score
			}
			if score == total {
				best = append(best, node)
			}
		}
		choice, fits := w.class("plain").Choose(nil, 0)
		if fits != (best != nil) || fits && !slices.Contains(best, choice.Node) {
			t.Fatalf("Choose() = node %d, %v, want one of %v", choice.Node, fits, best)
		}
		chosen[choice.Node] = true
	}
	if len(chosen) < 30 {
		t.Errorf("%d of 40 nodes were chosen at least once, want at least 30", len(chosen))
	}
}

// TestNumberOfClassesIsBounded creates more classes than the limit. The class that is used most
// recently is not dropped.
func TestNumberOfClassesIsBounded(t *testing.T) {
	w := &world{t: t, rand: rand.New(rand.NewPCG(1, 1)), index: New(), states: map[NodeID]State{}}
	w.index.limit = 10
	w.set(0, State{})
	for i := range 100 {
		_, err := w.index.Class(string(rune('a'+i)), func() (Spec, error) { return w.specs()["plain"], nil })
		if err != nil {
			t.Fatal(err)
		}
		w.class("plain")
	}
	if got := w.index.Classes(); got > 10 {
		t.Errorf("Classes() = %d, want at most 10", got)
	}
	if w.index.classes["plain"] == nil {
		t.Error("the class that was used after each creation was dropped, want it kept")
	}
}

// TestCountsInAnswersAreCopies takes the counts of a node in two ways, places a pod on the node, and checks that they
// have not changed: an answer is encoded after the index may have changed.
func TestCountsInAnswersAreCopies(t *testing.T) {
	w := &world{t: t, rand: rand.New(rand.NewPCG(1, 1)), index: New(), states: map[NodeID]State{}}
	w.set(0, State{})
	w.index.AddPod(0, 0)
	class := w.class("prefer")
	counts := class.NodeCounts(0)
	summary, err := class.SummarizeEach([]NodeID{0}, nil, func(NodeID) (Verdict, error) { return Verdict{Fits: true}, nil })
	if err != nil {
		t.Fatal(err)
	}
	w.index.AddPod(0, 0)
	now := w.class("prefer").NodeCounts(0)
	for name, host := range map[string][]int64{"NodeCounts()": counts.Host, "SummarizeEach()": summary.Groups[0].Host} {
		if host[0] != 1 || now.Host[0] != 2 {
			t.Errorf("%s has the count %d, and %d pods are on the node; want 1 and 2", name, host[0], now.Host[0])
		}
	}
}
