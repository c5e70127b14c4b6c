package wire

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
)

func seedBatch() *Batch {
	a := &Assignment{Term: 2, Number: 3, AfterTerm: 2, AfterNumber: 2, Leader: Member{Name: "a", Address: "a:1"}}
	a.SetTable(Assign(nil, []string{"a", "b"}))
	return &Batch{
		From: "a", Assignments: []*Assignment{a}, Nodes: []NodeName{{Hash: 1, Slot: 2, Created: 3}},
		Refreshing: []Refresh{{Term: 2, Number: 3, Slots: []int{1, 2}, ID: 4, Asked: 5}}, Pods: []Item{{UID: "u", Object: []byte{1}}},
		Reservations: []Reservation{{UID: "u", Node: "n", Pod: []byte{1}}}, Kept: []types.UID{"u"}, Acks: []Ack{{UID: "u"}},
		Status: &Status{Term: 2, Number: 3, Nodes: 4},
	}
}

func seedQuestion() *Question {
	return &Question{
		Ask: &Ask{Pod: []byte{1}, Offers: 3, Steps: 2}, Term: 1, Number: 2, From: "a", Seen: map[string]uint64{"b": 2},
		Branches: []Branch{{Member: Member{Name: "b"}, Branches: []Branch{{Member: Member{Name: "c"}}}}}, Patience: Patience{Deadline: time.Second, Quorum: 90},
	}
}

func seedAnswer() *Answer {
	return &Answer{
		Values: []string{NoValue, "", "zone"}, Profiles: []string{"\x00"}, Names: []string{"node"},
		Summary: index.Summary{Nodes: 1, Groups: []index.GroupSummary{{
			Facts: index.Facts{Values: []int32{2}}, Count: 1, Tiers: []index.Tier{{Count: 1, Offers: []index.Offer{{Slot: 0}}}},
		}}, Counters: []index.CounterSummary{{Values: []index.ValueCount{{Value: 2, Count: 1, Nodes: 1}}}}},
	}
}

// fuzz decodes what a hostile replica may send; use is what is done with what is valid.
func fuzz[T any](f *testing.F, seed *T, use func(*testing.T, *T)) {
	data, err := Encode(seed)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte{0xbf})
	f.Add([]byte{0x9b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		message := new(T)
		if Decode(data, message) == nil {
			use(t, message)
		}
	})
}

// FuzzBatch: what is valid has numbers that arrays have elements for.
func FuzzBatch(f *testing.F) {
	if err := seedBatch().validate(); err != nil {
		f.Fatal(err)
	}
	fuzz(f, seedBatch(), func(t *testing.T, b *Batch) {
		b.size()
		if b.validate() != nil {
			return
		}
		for _, a := range b.Assignments {
			if table := a.Table(); len(table) != Slots {
				t.Errorf("a table of %d", len(table))
			}
		}
		for _, refresh := range b.Listed {
			for _, slot := range refresh.Slots {
				_ = make([]bool, Slots)[slot]
			}
		}
	})
}

// FuzzQuestion: what is valid ends.
func FuzzQuestion(f *testing.F) {
	if err := seedQuestion().validate(); err != nil {
		f.Fatal(err)
	}
	fuzz(f, seedQuestion(), func(t *testing.T, q *Question) {
		if q.validate() == nil && q.Patience.Deadline > maxDeadline {
			t.Errorf("a deadline of %v", q.Patience.Deadline)
		}
	})
}

// FuzzAnswer: what is valid can be folded with another answer.
func FuzzAnswer(f *testing.F) {
	if err := seedAnswer().validate(); err != nil {
		f.Fatal(err)
	}
	fuzz(f, seedAnswer(), func(t *testing.T, a *Answer) {
		if a.validate() == nil {
			Fold([]*Answer{seedAnswer(), a}, 3)
		}
	})
}
