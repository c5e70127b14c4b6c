package index

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// Steps assumes that each pod adds one to Pods and to Memory, as in [world.step].
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

// best returns all nodes that [Class.Choose] may choose.
func best(class *Class) (nodes []NodeID, fitting int) {
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

// around bars one or two nodes and nominates pods to others.
func (w *world) around(spec Spec) []Nominated {
	var around []Nominated
	for _, node := range w.nodes() {
		switch a := (Nominated{Node: node}); {
		case w.rand.IntN(20) == 0:
			a.Barred = true
			around = append(around, a)
		case w.rand.IntN(10) == 0:
			if len(spec.Counters) > 0 {
				a.Extra = spec.Amounts(KindID(w.rand.IntN(kinds)))
			}
			around = append(around, a)
		}
	}
	return around
}

// TestMerged places batches of pods by merged summaries of several indexes and compares each
// choice with one index that has all nodes and pods.
func TestMerged(t *testing.T) {
	picked, longest := 0, 0
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 2))
		whole := &world{t: t, rand: random, index: New(), states: map[NodeID]State{}, pods: map[NodeID][]KindID{}}
		for range random.IntN(200) {
			whole.step()
		}
		count := 1 + random.IntN(4)
		// Each node is in one of the parts, with its own number.
		parts := make([]*world, count)
		for i := range parts {
			parts[i] = &world{t: t, index: New()}
		}
		of := map[NodeID]int{}
		for _, node := range whole.nodes() {
			of[node] = random.IntN(count)
			parts[of[node]].index.Place(node, whole.states[node])
			for _, kind := range whole.pods[node] {
				parts[of[node]].index.AddPod(node, kind)
			}
		}
		for key, spec := range whole.specs() {
			own := KindID(random.IntN(kinds))
			around := whole.around(spec)
			var summaries []Summary
			for i, part := range parts {
				mine := slices.DeleteFunc(slices.Clone(around), func(a Nominated) bool { return of[a.Node] != i })
				summary, err := part.class(key).Summarize(mine, 1+random.IntN(8), random.IntN(4))
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
				amounts = spec.Amounts(own)
			}
			// Some summaries are merged first, as by a relay.
			relayed := random.IntN(len(summaries))
			summary := Fold(append([]Summary{Fold(summaries[relayed:], 1+random.IntN(8))}, summaries[:relayed]...), 1+random.IntN(8))
			merged := NewMerged(spec, amounts, &summary)
			var class *Class
			run := 0
			for ; ; run++ {
				class = whole.class(key)
				undo := class.surround(around)
				want, fitting := best(class)
				undo()
				pick, outcome := merged.Choose()
				if outcome == Exhausted {
					break
				}
				if (outcome == Unfit) != (fitting == 0) || pick.Fitting != fitting {
					t.Fatalf("seed %d, %s, pod %d: %d nodes are reported to fit, want %d", seed, key, run, pick.Fitting, fitting)
				}
				if outcome == Unfit {
					break
				}
				if !slices.Contains(want, pick.Node) || of[pick.Node] != pick.Part {
					t.Fatalf("seed %d, %s, pod %d: node %d of part %d was picked, but the best are %v", seed, key, run, pick.Node, pick.Part, want)
				}
				for _, w := range []*Index{whole.index, parts[pick.Part].index} {
					state := whole.states[pick.Node]
					state.Pods, state.Memory = state.Pods+1, state.Memory+1
					w.AddPod(pick.Node, own)
					w.Place(pick.Node, state)
				}
				state := whole.states[pick.Node]
				state.Pods, state.Memory = state.Pods+1, state.Memory+1
				whole.states[pick.Node] = state
				picked++
			}
			if _, fitting := best(class); run == 0 && fitting > len(around) {
				t.Fatalf("seed %d, %s: no pod was placed, although %d nodes fit", seed, key, fitting)
			}
			longest = max(longest, run)
		}
	}
	t.Logf("%d pods placed, at most %d in a batch", picked, longest)
	if longest < 10 {
		t.Error("the batches are too short for a meaningful test")
	}
}
