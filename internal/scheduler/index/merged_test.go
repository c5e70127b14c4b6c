package index

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// Steps returns verdicts after each of several pods. Like [world.step], it assumes that each pod
// adds one to Pods and to Memory.
func (j judge) Steps(node NodeID, state *State, most int) ([]Step, error) {
	var steps []Step
	after := *state
	for range most {
		after.Pods, after.Memory = after.Pods+1, after.Memory+1
		verdict, err := j.Verdict(node, &after)
		if err != nil {
			return nil, err
		}
		steps = append(steps, Step{Fits: verdict.Fits, Static: verdict.Static})
	}
	return steps, nil
}

// bestNodes returns all nodes that [Class.Choose] may choose, and the number of nodes that fit.
func bestNodes(class *Class) (nodes []NodeID, fitting int) {
	r := &class.scratch
	if fitting = class.candidates(r); fitting == 0 {
		return nil, 0
	}
	class.total(r)
	most := slices.MaxFunc(r.candidates, func(a, b candidate) int { return int(a.total - b.total) }).total
	for i := range r.candidates {
		if r.candidates[i].total == most {
			nodes = append(nodes, class.some(r.candidates[i].top, class.x.count)...)
		}
	}
	return nodes, fitting
}

// nominations bars some nodes and nominates pods to others.
func (w *world) nominations(spec Spec) []Nominated {
	var all []Nominated
	for _, node := range w.nodes() {
		switch n := (Nominated{Node: node}); {
		case w.rand.IntN(20) == 0:
			n.Barred = true
			all = append(all, n)
		case w.rand.IntN(10) == 0:
			if len(spec.Counters) > 0 {
				n.Extra = spec.Amounts(KindID(w.rand.IntN(kinds)))
			}
			all = append(all, n)
		}
	}
	return all
}

// TestMergedSummariesEqualWholeIndex divides nodes among several indexes and schedules batches of
// pods by the merged summaries of these indexes. It compares each choice with one index that has
// all nodes and pods.
func TestMergedSummariesEqualWholeIndex(t *testing.T) {
	scheduled, longestBatch := 0, 0
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 2))
		whole := &world{t: t, rand: random, index: New(), states: map[NodeID]State{}, pods: map[NodeID][]KindID{}}
		for range random.IntN(200) {
			whole.step()
		}
		count := 1 + random.IntN(4)
		// Each node is in one of the parts, with the same number as in the whole index.
		parts := make([]*world, count)
		for i := range parts {
			parts[i] = &world{t: t, index: New()}
		}
		partOf := map[NodeID]int{}
		for _, node := range whole.nodes() {
			partOf[node] = random.IntN(count)
			parts[partOf[node]].index.Place(node, whole.states[node])
			for _, kind := range whole.pods[node] {
				parts[partOf[node]].index.AddPod(node, kind)
			}
		}
		for key, spec := range whole.specs() {
			kind := KindID(random.IntN(kinds))
			nominated := whole.nominations(spec)
			var summaries []Summary
			for i, part := range parts {
				ofPart := slices.DeleteFunc(slices.Clone(nominated), func(n Nominated) bool { return partOf[n.Node] != i })
				summary, err := part.class(key).Summarize(ofPart, 1+random.IntN(8), random.IntN(4))
				if err != nil {
					t.Fatal(err)
				}
				for g := range summary.Groups {
					for _, tier := range summary.Groups[g].Tiers {
						for o := range tier.Offers {
							tier.Offers[o].Part = i
						}
					}
				}
				summaries = append(summaries, summary)
			}
			var amounts []Amount
			if len(spec.Counters) > 0 {
				amounts = spec.Amounts(kind)
			}
			// Some summaries are merged first, as by a relay.
			relayed := random.IntN(len(summaries))
			summary := Fold(append([]Summary{Fold(summaries[relayed:], 1+random.IntN(8))}, summaries[:relayed]...), 1+random.IntN(8))
			merged := NewMerged(spec, amounts, &summary)
			var class *Class
			batch := 0
			for ; ; batch++ {
				class = whole.class(key)
				undo := class.includeNominated(nominated)
				want, fitting := bestNodes(class)
				undo()
				pick, outcome := merged.Choose()
				if outcome == Exhausted {
					break
				}
				if (outcome == Unfit) != (fitting == 0) || pick.Fitting != fitting {
					t.Fatalf("seed %d, class %s, pod %d: Choose() = %d fitting nodes, outcome %v, want %d", seed, key, batch, pick.Fitting, outcome, fitting)
				}
				if outcome == Unfit {
					break
				}
				if !slices.Contains(want, pick.Node) || partOf[pick.Node] != pick.Part {
					t.Fatalf("seed %d, class %s, pod %d: Choose() = node %d of part %d, want one of %v", seed, key, batch, pick.Node, pick.Part, want)
				}
				for _, x := range []*Index{whole.index, parts[pick.Part].index} {
					state := whole.states[pick.Node]
					state.Pods, state.Memory = state.Pods+1, state.Memory+1
					x.AddPod(pick.Node, kind)
					x.Place(pick.Node, state)
				}
				state := whole.states[pick.Node]
				state.Pods, state.Memory = state.Pods+1, state.Memory+1
				whole.states[pick.Node] = state
				scheduled++
			}
			if _, fitting := bestNodes(class); batch == 0 && fitting > len(nominated) {
				t.Fatalf("seed %d, class %s: no pod was scheduled, although %d nodes fit", seed, key, fitting)
			}
			longestBatch = max(longestBatch, batch)
		}
	}
	t.Logf("%d pods scheduled, at most %d in a batch", scheduled, longestBatch)
	if longestBatch < 10 {
		t.Errorf("the longest batch has %d pods, want at least 10 for a meaningful test", longestBatch)
	}
}
