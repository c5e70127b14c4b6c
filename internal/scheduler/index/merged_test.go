package index

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// Steps assumes that each pod adds one to Pods and to Memory, as in [world.step].
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

// best returns all nodes that [Class.Choose] may choose.
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

// around bars one or two nodes and nominates pods to others.
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

// TestMerged places batches of pods by merged summaries of several indexes and compares each
// choice with one index that has all nodes and pods.
func TestMerged(t *testing.T) {
	picked, longest := 0, 0
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 2))
		whole := &world{t: t, rand: random, index: New(), states: map[Slot]State{}, pods: map[Slot][]KindID{}}
		for range random.IntN(200) {
			whole.step()
		}
		count := 1 + random.IntN(4)
		// Each node is in one of the parts, with its own number.
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
				if outcome == Spent {
					break
				}
				if (outcome == Unfit) != (fitting == 0) || pick.Fitting != fitting {
					t.Fatalf("seed %d, %s, pod %d: %d nodes are reported to fit, want %d", seed, key, run, pick.Fitting, fitting)
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
	t.Logf("%d pods placed, at most %d in a batch", picked, longest)
	if longest < 10 {
		t.Error("the batches are too short for a meaningful test")
	}
}
