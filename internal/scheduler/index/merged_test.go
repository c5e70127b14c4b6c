package index

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// Steps: a pod more takes one of Pods and of Memory, as [world.step] has it.
func (j judge) Steps(slot Slot, state *State, most int) ([]Step, error) {
	var steps []Step
	after := *state
	for range most {
		after.Pods, after.Memory = after.Pods+1, after.Memory+1
		verdict, err := j.Verdict(slot, &after)
		if err != nil {
			return nil, err
		}
		steps = append(steps, Step{Fits: verdict.Fits, Static: verdict.Static})
	}
	return steps, nil
}

// best are all nodes that [Class.Choose] may choose.
func best(class *Class) (slots []Slot, fitting int) {
	r := &class.scratch
	if fitting = class.candidates(r); fitting == 0 {
		return nil, 0
	}
	class.total(r)
	most := slices.MaxFunc(r.candidates, func(a, b candidate) int { return int(a.total - b.total) }).total
	for i := range r.candidates {
		if r.candidates[i].total == most {
			slots = append(slots, class.some(r.candidates[i].top, class.x.count)...)
		}
	}
	return slots, fitting
}

// around bars a node or two, and has pods to come to others.
func (w *world) around(spec Spec) []Around {
	var around []Around
	for _, slot := range w.slots() {
		switch a := (Around{Slot: slot}); {
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

// TestMerged holds runs of pods, placed by what several indexes say, against one index
// that has all nodes and is told of each pod.
func TestMerged(t *testing.T) {
	picked, longest := 0, 0
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 2))
		whole := &world{t: t, rand: random, index: New(), states: map[Slot]State{}, pods: map[Slot][]KindID{}}
		for range random.IntN(200) {
			whole.step()
		}
		count := 1 + random.IntN(4)
		// Each node is in one of the parts, under its own number.
		parts := make([]*world, count)
		for i := range parts {
			parts[i] = &world{t: t, index: New()}
		}
		of := map[Slot]int{}
		for _, slot := range whole.slots() {
			of[slot] = random.IntN(count)
			parts[of[slot]].index.Place(slot, whole.states[slot])
			for _, kind := range whole.pods[slot] {
				parts[of[slot]].index.AddPod(slot, kind)
			}
		}
		for key, spec := range whole.specs() {
			own := KindID(random.IntN(kinds))
			around := whole.around(spec)
			var summaries []Summary
			for i, part := range parts {
				mine := slices.DeleteFunc(slices.Clone(around), func(a Around) bool { return of[a.Slot] != i })
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
			// As through a relay, that folds what some of them say.
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
				if outcome == Spent {
					break
				}
				if (outcome == Unfit) != (fitting == 0) || pick.Fitting != fitting {
					t.Fatalf("seed %d, %s, pod %d: %d nodes are said to fit, and %d do", seed, key, run, pick.Fitting, fitting)
				}
				if outcome == Unfit {
					break
				}
				if !slices.Contains(want, pick.Slot) || of[pick.Slot] != pick.Part {
					t.Fatalf("seed %d, %s, pod %d: node %d of part %d was picked, but the best are %v", seed, key, run, pick.Slot, pick.Part, want)
				}
				for _, w := range []*Index{whole.index, parts[pick.Part].index} {
					state := whole.states[pick.Slot]
					state.Pods, state.Memory = state.Pods+1, state.Memory+1
					w.AddPod(pick.Slot, own)
					w.Place(pick.Slot, state)
				}
				state := whole.states[pick.Slot]
				state.Pods, state.Memory = state.Pods+1, state.Memory+1
				whole.states[pick.Slot] = state
				picked++
			}
			if _, fitting := best(class); run == 0 && fitting > len(around) {
				t.Fatalf("seed %d, %s: no pod was placed, although %d nodes fit", seed, key, fitting)
			}
			longest = max(longest, run)
		}
	}
	t.Logf("%d pods placed, at most %d in a run", picked, longest)
	if longest < 10 {
		t.Error("runs are too short to say much")
	}
}
