package scheduler

import (
	"context"
	"testing"
	"time"

	upstream "k8s.io/kubernetes/pkg/scheduler"

	"github.com/k8s-1m/k8s-1m/internal/shard"
)

// worldShard is a scheduler that has some of the nodes of a world.
type worldShard struct {
	sched  *upstream.Scheduler
	ranker *ranker
}

// ask asks all shards, with everything sent as it is between processes, and some of the
// answers folded on the way.
func (w *world) ask(ctx context.Context, ask *shard.Ask, _ bool) (*shard.Answer, error) {
	w.questions++
	var answers []*shard.Answer
	for _, s := range w.shards {
		question, answer := &shard.Ask{}, &shard.Answer{}
		w.transmit(ask, question)
		given, err := s.ranker.answer(ctx, question)
		if err != nil {
			return nil, err
		}
		w.transmit(given, answer)
		answers = append(answers, answer)
		if len(answers) > 1 && w.chance(30) {
			answers = []*shard.Answer{shard.Fold(answers, 1+w.rand.IntN(5))}
		}
	}
	return shard.Fold(answers, 1+w.rand.IntN(5)), nil
}

func (w *world) transmit(from, to any) {
	encoded, err := shard.Encode(from)
	w.store(err)
	w.store(shard.Decode(encoded, to))
}

// TestShardedOracle holds the decisions of a leader over shards against the same
// reference as those of one process.
func TestShardedOracle(t *testing.T) {
	first := *seed
	if first == 0 {
		first = uint64(time.Now().UnixNano())
	}
	for _, shards := range []int{1, 2, 3, 8} {
		questions, all := 0, 0
		for round := range (*rounds + 3) / 4 {
			w := newWorld(t, first+uint64(round), shards)
			w.run(300)
			questions, all = questions+w.questions, all+w.decisions
			if t.Failed() {
				t.Fatalf("with %d shards", shards)
			}
		}
		t.Logf("seed %d, %d shards: %d decisions by %d questions", first, shards, all, questions)
	}
}
