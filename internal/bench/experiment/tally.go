package experiment

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// DefaultMaxErrorRate fails a run when more operations than this end in an error.
const DefaultMaxErrorRate = 0.01

// Tally counts operations, and errors by kind. It is for many goroutines.
type Tally struct {
	mu         sync.Mutex
	operations int64
	errors     map[string]int64
	maxRate    float64
	first      string
}

// NewTally fails a run whose errors are more than this part of the operations.
func NewTally(maxRate float64) *Tally {
	return &Tally{errors: map[string]int64{}, maxRate: maxRate}
}

// Add counts an operation; kind is empty for one that succeeded.
func (t *Tally) Add(kind string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.operations++
	if err == nil {
		return
	}
	t.errors[kind]++
	if t.first == "" {
		t.first = err.Error()
	}
}

// AddMany counts operations that somebody else has counted, errors among them.
func (t *Tally) AddMany(operations int64, errors map[string]int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.operations += operations
	for kind, count := range errors {
		t.errors[kind] += count
	}
}

// Merge adds what another has counted.
func (t *Tally) Merge(other *Tally) {
	operations, errors, first := other.read()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.operations += operations
	for kind, count := range errors {
		t.errors[kind] += count
	}
	if t.first == "" {
		t.first = first
	}
}

func (t *Tally) read() (operations int64, errors map[string]int64, first string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.operations, maps.Clone(t.errors), t.first
}

// Operations that were counted, those with errors too.
func (t *Tally) Operations() int64 {
	operations, _, _ := t.read()
	return operations
}

// Rate is the part of the operations that ended in an error.
func (t *Tally) Rate() float64 {
	operations, errors, _ := t.read()
	if operations == 0 {
		return 0
	}
	return float64(sum(errors)) / float64(operations)
}

// Describe reads like "3 × timeout, 1 × NotFound"; empty without errors.
func (t *Tally) Describe() string {
	_, errors, _ := t.read()
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(errors)) {
		parts = append(parts, fmt.Sprintf("%d × %s", errors[kind], kind))
	}
	return strings.Join(parts, ", ")
}

// Err says that there were too many errors.
func (t *Tally) Err() error {
	operations, _, first := t.read()
	if rate := t.Rate(); rate > t.maxRate {
		return fmt.Errorf("%.2f %% of %d operations failed, more than %.2f %% (--max-error-rate): %s; the first: %s",
			100*rate, operations, 100*t.maxRate, t.Describe(), first)
	}
	return nil
}

// MarshalJSON writes what was counted.
func (t *Tally) MarshalJSON() ([]byte, error) {
	operations, errors, first := t.read()
	return json.Marshal(map[string]any{
		"operations": operations, "byKind": errors, "rate": t.Rate(), "maxRate": t.maxRate, "first": first,
	})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (t *Tally) UnmarshalJSON(data []byte) error {
	var stored struct {
		Operations int64            `json:"operations"`
		ByKind     map[string]int64 `json:"byKind"`
		MaxRate    float64          `json:"maxRate"`
		First      string           `json:"first"`
	}
	if err := json.Unmarshal(data, &stored); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.operations, t.errors, t.maxRate, t.first = stored.Operations, stored.ByKind, stored.MaxRate, stored.First
	return nil
}

func sum(counts map[string]int64) (total int64) {
	for _, count := range counts {
		total += count
	}
	return total
}
