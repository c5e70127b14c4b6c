package wire

import "encoding/binary"

// Refusals adds rejected nodes to answers, and merges those with equal statuses. Each node may have another status, for
// example because of a taint of its own, so it finds equal ones by a key. Its zero value is empty.
type Refusals struct {
	list []Refusal
	// numbers are the positions in list, by the key of the status.
	numbers map[string]int
	key     []byte
}

// Add adds rejected nodes.
func (r *Refusals) Add(refusal Refusal) {
	if r.numbers == nil {
		r.numbers = map[string]int{}
	}
	r.key = refusal.AppendKey(r.key[:0])
	if number, known := r.numbers[string(r.key)]; known {
		r.list[number].Nodes += refusal.Nodes
		return
	}
	r.numbers[string(r.key)] = len(r.list)
	r.list = append(r.list, refusal)
}

// List returns the refusals, in the order in which their statuses were first added.
func (r *Refusals) List() []Refusal { return r.list }

// AppendKey appends a key that two refusals share if they differ at most in the number of nodes.
func (r *Refusal) AppendKey(key []byte) []byte {
	key = binary.AppendVarint(key, int64(r.Code))
	key = appendString(key, r.Plugin)
	key = binary.AppendUvarint(key, uint64(len(r.Reasons)))
	for _, reason := range r.Reasons {
		key = appendString(key, reason)
	}
	if r.Counts == nil {
		return append(key, 0)
	}
	return r.Counts.AppendKey(append(key, 1))
}

// appendString appends the length of a string and the string.
func appendString(key []byte, s string) []byte {
	return append(binary.AppendUvarint(key, uint64(len(s))), s...)
}

// CopyRefusals returns the refusals of an answer.
func (a *Answer) CopyRefusals() *Refusals {
	all := &Refusals{}
	for i := range a.Refusals {
		all.Add(a.Refusals[i])
	}
	return all
}
