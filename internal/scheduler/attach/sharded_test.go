package attach_test

import (
	"context"
	"maps"
	"math"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
	schedutil "k8s.io/kubernetes/pkg/scheduler/util"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// worldShard is a scheduler that has some of the nodes of a world.
type worldShard struct {
	sched  *kubescheduler.Scheduler
	ranker *rank.Ranker
}

// shardOwners are the shards of a world, as a search queries them.
type shardOwners struct{ *world }

func (o shardOwners) Nodes() int { return len(o.nodes) }

func (shardOwners) KeepNode(*v1.Node) {}

func (shardOwners) RetryWhenAllAnswer(*v1.Pod) {}

// Query queries all shards. Messages are encoded as between processes, and some answers are folded on
// the way.
func (w shardOwners) Query(ctx context.Context, ask *wire.Query, _ bool) (*wire.Answer, error) {
	w.questions++
	var answers []*wire.Answer
	for _, s := range w.shards {
		question, answer := &wire.Query{}, &wire.Answer{}
		w.transmit(ask, question)
		given, err := s.ranker.Answer(ctx, question)
		if err != nil {
			return nil, err
		}
		w.transmit(given, answer)
		answers = append(answers, answer)
		if len(answers) > 1 && w.chance(30) {
			answers = []*wire.Answer{wire.Fold(answers, 1+w.rand.IntN(5))}
		}
	}
	return wire.Fold(answers, 1+w.rand.IntN(5)), nil
}

func (w *world) transmit(from, to any) {
	encoded, err := wire.Encode(from)
	w.store(err)
	w.store(wire.Decode(encoded, to))
}

// TestShardedOracle compares the decisions of a leader over shards with the same reference as those
// of one process.
func TestShardedOracle(t *testing.T) {
	first := schedtest.FirstSeed()
	for _, shards := range []int{1, 2, 3, 8} {
		questions, all, preemptions := 0, 0, 0
		for round := range (*rounds + 3) / 4 {
			w := newWorld(t, first+uint64(round), shards)
			w.run(300)
			questions, all, preemptions = questions+w.questions, all+w.decisions, preemptions+w.preemptions
			if t.Failed() {
				t.Fatalf("with %d shards", shards)
			}
		}
		t.Logf("seed %d, %d shards: %d decisions by %d questions, %d preemptions", first, shards, all, questions, preemptions)
	}
}

// preempts compares what the shards propose, and what is picked of it, with what upstream's plugin
// finds on all nodes.
func (w *world) preempts(pod *v1.Pod) {
	nodes, pods := slices.Collect(maps.Values(w.nodes)), slices.Collect(maps.Values(w.pods))
	candidates, err := w.reference.Preempt(w.ctx, w.preemptionArgs, pods, nodes, pod)
	w.store(err)
	best, answer, err := w.preemptor.BestCandidate(w.ctx, trimmed(w, pod))
	w.store(err)
	if best == nil {
		if len(candidates) > 0 {
			w.fail(pod, "nobody leaves for it (%q, %v), but could on %d nodes", answer.Ineligible, answer.Refusals, len(candidates))
		}
		return
	}
	w.preemptions++
	have := rankOf(best)
	there := false
	for _, candidate := range candidates {
		want := rankOf(candidate)
		if slices.Compare(want[:], have[:]) < 0 {
			w.fail(pod, "pods leave %s for it (%v), but %s is better (%v)", best.Name(), have, candidate.Name(), want)
		}
		there = there || candidate.Name() == best.Name() && want == have
	}
	if !there {
		all := map[string][5]int64{}
		for _, candidate := range candidates {
			all[candidate.Name()] = rankOf(candidate)
		}
		w.fail(pod, "pods leave %s for it (%v), but upstream finds %v", best.Name(), have, all)
	}
}

// rankOf returns the values by which upstream compares candidates; smaller is better.
func rankOf(c preemption.Candidate) [5]int64 {
	victims := c.Victims()
	rank := [5]int64{victims.NumPDBViolations, int64(corev1helpers.PodPriority(victims.Pods[0])), 0, int64(len(victims.Pods)), math.MaxInt64}
	for _, victim := range victims.Pods {
		rank[2] += int64(corev1helpers.PodPriority(victim)) + math.MaxInt32 + 1
	}
	if earliest := schedutil.GetEarliestPodStartTime(victims); earliest != nil {
		rank[4] = -earliest.UnixNano()
	}
	return rank
}
