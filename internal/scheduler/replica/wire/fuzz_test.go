package wire

import (
	"testing"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
)

// seedBatch returns a valid batch in which most fields are set.
func seedBatch() *Batch {
	a := &Assignment{Term: 2, Number: 3, AfterTerm: 2, AfterNumber: 2, AfterLeader: "a", Leader: membership.Member{Name: "a", Address: "a:1"}}
	a.SetTable(membership.Assign(nil, []string{"a", "b"}))
	return &Batch{
		From: "a", Assignments: []*Assignment{a}, Nodes: []NodeName{{Hash: 1, Slot: 2, Created: 3, Number: 4}},
		Refreshing: []Refresh{{Term: 2, Number: 3, Slots: []int{1, 2}, ID: 4, InReplyTo: 5}}, Pods: []Item{{UID: "u", Object: []byte{1}}},
		Reservations: []Reservation{{UID: "u", Node: "n", Pod: []byte{1}}}, Kept: []Renewal{{UID: "u", Attempt: 1}}, Acks: []Ack{{UID: "u"}},
		Status: &Status{Term: 2, Number: 3, Nodes: 4, Listing: 5},
	}
}

// seedRequest returns a valid request in which most fields are set.
func seedRequest() *Request {
	return &Request{
		Query: &Query{Pod: []byte{1}, Offers: 3, Steps: 2}, Term: 1, Number: 2, From: "a", Reservations: map[string]uint64{"b": 2},
		Branches: []membership.Branch{{Member: membership.Member{Name: "b"}, Branches: []membership.Branch{{Member: membership.Member{Name: "c"}}}}}, Patience: Patience{Deadline: time.Second, Quorum: 90},
	}
}

// seedAnswer returns a valid answer in which most fields are set.
func seedAnswer() *Answer {
	return &Answer{
		Values: []string{NoValue, "", "zone"}, ImageSets: []string{"\x00"}, Names: []string{"node"}, Failed: "error",
		UnavailableClaims: []UnavailableClaim{{Claim: 1, Node: "node"}},
		Summary: index.Summary{Nodes: 1, Groups: []index.GroupSummary{{
			Topology: index.Topology{Values: []int32{2}}, Count: 1, Tiers: []index.Tier{{Count: 1, Offers: []index.Offer{{Node: 0}}}},
		}}, Counters: []index.CounterSummary{{Values: []index.ValueCount{{Value: 2, Count: 1, Nodes: 1}}}}},
	}
}

// fuzz decodes arbitrary bytes as CBOR and calls check for each decoded message.
func fuzz[T any](f *testing.F, seed *T, check func(*testing.T, *T)) {
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
			check(t, message)
		}
	})
}

// FuzzBatch checks that batches that pass validation have no hash slots out of range.
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
				t.Errorf("Table() has %d slots, want %d", len(table), membership.SlotCount)
			}
		}
		for _, refresh := range b.Listed {
			for _, slot := range refresh.Slots {
				_ = make([]bool, membership.SlotCount)[slot] // panics if the slot is out of range
			}
		}
	})
}

// FuzzRequest checks that requests that pass validation have a bounded deadline.
func FuzzRequest(f *testing.F) {
	if err := seedRequest().validate(); err != nil {
		f.Fatal(err)
	}
	fuzz(f, seedRequest(), func(t *testing.T, q *Request) {
		if q.validate() == nil && q.Patience.Deadline > MaxDeadline {
			t.Errorf("validate() accepted the deadline %v, want at most %v", q.Patience.Deadline, MaxDeadline)
		}
	})
}

// FuzzAnswer checks that answers that pass validation can be folded without a panic.
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
