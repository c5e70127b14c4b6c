package wire

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
)

func seedBatch() *Batch {
	a := &Assignment{Term: 2, Number: 3, AfterTerm: 2, AfterNumber: 2, Leader: membership.Member{Name: "a", Address: "a:1"}}
	a.SetTable(membership.Assign(nil, []string{"a", "b"}))
	return &Batch{
		From: "a", Assignments: []*Assignment{a}, Nodes: []NodeName{{Hash: 1, Slot: 2, Created: 3}},
		Refreshing: []Refresh{{Term: 2, Number: 3, Slots: []int{1, 2}, ID: 4, InReplyTo: 5}}, Pods: []Item{{UID: "u", Object: []byte{1}}},
		Reservations: []Reservation{{UID: "u", Node: "n", Pod: []byte{1}}}, Kept: []types.UID{"u"}, Acks: []Ack{{UID: "u"}},
		Status: &Status{Term: 2, Number: 3, Nodes: 4},
	}
}

func seedRequest() *Request {
	return &Request{
		Query: &Query{Pod: []byte{1}, Offers: 3, Steps: 2}, Term: 1, Number: 2, From: "a", Reservations: map[string]uint64{"b": 2},
		Branches: []membership.Branch{{Member: membership.Member{Name: "b"}, Branches: []membership.Branch{{Member: membership.Member{Name: "c"}}}}}, Patience: Patience{Deadline: time.Second, Quorum: 90},
	}
}

func seedAnswer() *Answer {
	return &Answer{
		Values: []string{NoValue, "", "zone"}, ImageSets: []string{"\x00"}, Names: []string{"node"},
		Summary: index.Summary{Nodes: 1, Groups: []index.GroupSummary{{
			Topology: index.Topology{Values: []int32{2}}, Count: 1, Tiers: []index.Tier{{Count: 1, Offers: []index.Offer{{Node: 0}}}},
		}}, Counters: []index.CounterSummary{{Values: []index.ValueCount{{Value: 2, Count: 1, Nodes: 1}}}}},
	}
}

// fuzz decodes arbitrary messages and calls use for those that CBOR can decode.
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

// FuzzBatch checks that valid batches have no hash slots out of range.
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
			if table := a.Table(); len(table) != membership.SlotCount {
				t.Errorf("a table has %d slots", len(table))
			}
		}
		for _, refresh := range b.Listed {
			for _, slot := range refresh.Slots {
				_ = make([]bool, membership.SlotCount)[slot]
			}
		}
	})
}

// FuzzRequest checks that valid queries have a bounded deadline.
func FuzzRequest(f *testing.F) {
	if err := seedRequest().validate(); err != nil {
		f.Fatal(err)
	}
	fuzz(f, seedRequest(), func(t *testing.T, q *Request) {
		if q.validate() == nil && q.Patience.Deadline > maxDeadline {
			t.Errorf("the deadline is %v", q.Patience.Deadline)
		}
	})
}

// FuzzAnswer checks that valid answers can be merged.
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
