package wire

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
)

// manyNodes is more than CBOR's default limit of array elements.
const manyNodes = 150_000

// TestMessagesAboutManyNodesAreDecoded encodes and decodes an answer and a batch with an element for each node.
func TestMessagesAboutManyNodesAreDecoded(t *testing.T) {
	values := []string{NoValue, ""}
	for i := range manyNodes {
		values = append(values, fmt.Sprint(i))
	}
	group := index.GroupSummary{
		Raw: []int64{1, 2}, Topology: index.Topology{Values: []int32{1}}, Count: 1, Tiers: []index.Tier{{Count: 1, Offers: []index.Offer{{Steps: []index.Step{{Fits: true}}}}}},
	}
	answer := &Answer{
		Values: values, Summary: index.Summary{Groups: slices.Repeat([]index.GroupSummary{group}, manyNodes), Counters: []index.CounterSummary{{Values: make([]index.ValueCount, manyNodes)}}},
		Refusals: make([]Refusal, manyNodes),
	}
	got := &Answer{}
	recode(t, answer, got)
	if len(got.Values) != len(values) || len(got.Summary.Groups) != manyNodes || len(got.Summary.Counters[0].Values) != manyNodes || len(got.Refusals) != manyNodes {
		t.Errorf("the answer has %d values, %d groups and %d refusals", len(got.Values), len(got.Summary.Groups), len(got.Refusals))
	}
	batch := &Batch{}
	recode(t, &Batch{Nodes: make([]NodeName, manyNodes)}, batch)
	if len(batch.Nodes) != manyNodes {
		t.Errorf("the batch has %d nodes, want %d", len(batch.Nodes), manyNodes)
	}
}

func recode(t *testing.T, message, got any) {
	t.Helper()
	data, err := Encode(message)
	if err != nil {
		t.Fatal(err)
	}
	if len(data) > maxMessage {
		t.Fatalf("the message has %d bytes, want at most %d", len(data), maxMessage)
	}
	if err := Decode(data, got); err != nil {
		t.Fatal(err)
	}
}

// TestMessagesWithManyEmptyElementsAreRejected decodes messages whose elements have one byte each and would need 200 times
// this memory.
func TestMessagesWithManyEmptyElementsAreRejected(t *testing.T) {
	array := func(count int, element ...byte) []byte {
		return append([]byte{0x9a, byte(count >> 24), byte(count >> 16), byte(count >> 8), byte(count)}, slices.Repeat(element, count)...)
	}
	nulls := func(count int) []byte { return array(count, 0xf6) }
	nested := []byte{0x98, 100}
	for range 100 {
		nested = append(nested, nulls(maxElements/20)...)
	}
	batch := []byte{0xa1, 0x6c}
	batch = append(batch, "Reservations"...)
	small := append(slices.Clone(batch), array(maxElements/2, 0xa1, 0x00, 0x00)...) // maps from 0 to 0
	for name, data := range map[string][]byte{"one array": append(batch, nulls(maxElements+1)...), "small maps": small, "nested arrays": nested} {
		var message any = &Batch{}
		if name == "nested arrays" {
			message = &[][]Reservation{}
		}
		allocated := testing.AllocsPerRun(1, func() {
			if err := Decode(data, message); err == nil || !strings.Contains(err.Error(), "elements") {
				t.Errorf("%s: Decode() = %v, want an error about elements", name, err)
			}
		})
		if allocated > 1000 {
			t.Errorf("%s: Decode() allocates %v times", name, allocated)
		}
	}
}

// TestUndecodableAnswerFailsOnlyItsPod has a replica answer with more elements than can be decoded. The replica has failed
// to evaluate the pod; it is not absent.
func TestUndecodableAnswerFailsOnlyItsPod(t *testing.T) {
	address, stop := serve(t, "127.0.0.1:0", &recorder{answer: &Answer{Values: make([]string, maxElements+1)}})
	defer stop()
	q := &Request{Query: &Query{}, Term: 1, Number: 1, Patience: Patience{Deadline: MaxDeadline, Quorum: 100}}
	answer := NewDialer(nil).Scatter(t.Context(), nil, []membership.Member{{Name: "other", Address: address}}, 10, nil, q)
	if len(answer.Absent) > 0 || !strings.HasPrefix(answer.Failed, "other: decoding the answer: ") {
		t.Errorf("Scatter() = failure %q, absent %v, errors %v, want a failure of replica other", answer.Failed, answer.Absent, answer.Errors)
	}
}
