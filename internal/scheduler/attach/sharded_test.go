package attach_test

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/reference"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// worldShard is a scheduler that has some of the nodes of a world.
type worldShard struct {
	sched  *kubescheduler.Scheduler
	ranker *rank.Ranker
}

// shardOwners implements leader.Owners by the shards of a world.
type shardOwners struct{ *world }

func (o shardOwners) Nodes() int { return len(o.world.Nodes) }

func (shardOwners) KeepNode(*v1.Node) {}

func (shardOwners) RetryWhenAllAnswer(*v1.Pod) {}
func (shardOwners) Earlier(types.UID) string   { return "" }
func (shardOwners) ReleaseEarlier(types.UID)   {}
func (shardOwners) IsUnsettled(types.UID) bool { return false }

// Query queries all shards. Messages are encoded and decoded as between processes, except those of the first shard,
// which is in the leader's process. Some answers are merged early, as by a relay.
func (w shardOwners) Query(ctx context.Context, query *wire.Query, _ bool) (*wire.Answer, error) {
	w.checkSentQuery()
	w.queries++
	w.sentQuery, w.encodedQuery = query, w.encode(query)
	var answers []*wire.Answer
	for i, s := range w.shards {
		received, answer := &wire.Query{}, &wire.Answer{}
		if w.transmit(query, received); i == 0 {
			received = query
		}
		sent, err := s.ranker.Answer(ctx, received)
		if err != nil {
			return nil, err
		}
		w.transmit(sent, answer)
		answers = append(answers, answer)
		if len(answers) > 1 && w.Chance(30) {
			answers = []*wire.Answer{wire.Fold(answers, 1+w.Rand.IntN(5))}
		}
	}
	return wire.Fold(answers, 1+w.Rand.IntN(5)), nil
}

// checkSentQuery checks that the previous query is as it was sent: [wire.Gather] can return before it has encoded
// the query for a slow replica.
func (w *world) checkSentQuery() {
	if w.sentQuery == nil {
		return
	}
	before, now := &wire.Query{}, &wire.Query{}
	w.must(wire.Decode(w.encodedQuery, before))
	if w.transmit(w.sentQuery, now); !reflect.DeepEqual(before, now) {
		w.t.Errorf("seed %d: a query was changed after it was sent: %+v", w.seed, w.sentQuery)
	}
}

// transmit encodes a message and decodes it into another.
func (w *world) transmit(from, to any) {
	w.must(wire.Decode(w.encode(from), to))
}

func (w *world) encode(message any) []byte {
	encoded, err := wire.Encode(message)
	w.must(err)
	return encoded
}

// TestShardedOracle is [TestOracle] for a leader whose nodes are divided among shards.
func TestShardedOracle(t *testing.T) {
	seed := schedtest.Seed()
	for _, shards := range []int{1, 2, 3, 8} {
		queries, decisions, preemptions := 0, 0, 0
		for i := range (*clusterCount + 3) / 4 {
			w := newWorld(t, seed+uint64(i), shards)
			w.run(300)
			queries, decisions, preemptions = queries+w.queries, decisions+w.decisions, preemptions+w.preemptions
			if t.Failed() {
				t.Fatalf("failed with %d shards", shards)
			}
		}
		t.Logf("seed %d, %d shards: %d decisions by %d queries, %d preemptions", seed, shards, decisions, queries, preemptions)
	}
}

// comparePreemption compares the leader's choice among the candidates of the shards with the
// candidates that upstream's plugin finds on all nodes.
func (w *world) comparePreemption(pod *v1.Pod) {
	nodes, pods := slices.Collect(maps.Values(w.Nodes)), slices.Collect(maps.Values(w.Pods))
	candidates, err := w.reference.Preempt(w.ctx, w.preemptionArgs, pods, nodes, pod)
	w.must(err)
	best, answer, err := w.preemptor.BestCandidate(w.ctx, trimmed(w, pod))
	w.must(err)
	if best == nil {
		if len(candidates) > 0 {
			w.fail(pod, "Best() = nil (ineligible %q, refusals %v), want one of %d candidates", answer.Ineligible, answer.Refusals, len(candidates))
		}
		return
	}
	w.preemptions++
	got := reference.CandidateRank(best)
	found := false
	for _, candidate := range candidates {
		other := reference.CandidateRank(candidate)
		if slices.Compare(other[:], got[:]) < 0 {
			w.fail(pod, "Best() = %s with rank %v, want %s with rank %v", best.Name(), got, candidate.Name(), other)
		}
		found = found || candidate.Name() == best.Name() && other == got
	}
	if !found {
		ranks := map[string][5]int64{}
		for _, candidate := range candidates {
			ranks[candidate.Name()] = reference.CandidateRank(candidate)
		}
		w.fail(pod, "Best() = %s with rank %v, want one of %v", best.Name(), got, ranks)
	}
}
