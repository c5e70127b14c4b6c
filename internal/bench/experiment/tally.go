package experiment

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// DefaultMaxErrorRate is the fraction of failed operations above which a run fails.
const DefaultMaxErrorRate = 0.01

// Tally counts operations, and failed operations by kind of error. It is safe for concurrent use.
type Tally struct {
	mu         sync.Mutex
	operations int64
	errors     map[string]int64
	maxRate    float64
	first      string // text of the first error
}

// NewTally returns a tally. Its Err returns an error if a larger fraction of the operations than maxRate
// has failed.
func NewTally(maxRate float64) *Tally {
	return &Tally{errors: map[string]int64{}, maxRate: maxRate}
}

// Add counts an operation. If err is not nil, the operation failed with an error of this kind.
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

// AddMany adds operations that were counted elsewhere. operations includes the failed operations, and
// errors is the number of these by kind.
func (t *Tally) AddMany(operations int64, errors map[string]int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.operations += operations
	for kind, count := range errors {
		t.errors[kind] += count
	}
}

// Merge adds the counts of another tally.
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

// Operations returns the number of operations, including failed ones.
func (t *Tally) Operations() int64 {
	operations, _, _ := t.read()
	return operations
}

// Rate returns the fraction of the operations that failed.
func (t *Tally) Rate() float64 {
	operations, errors, _ := t.read()
	if operations == 0 {
		return 0
	}
	return float64(sum(errors)) / float64(operations)
}

// Describe returns the number of errors by kind, such as "1 × NotFound, 3 × timeout", or "" if there are
// none.
func (t *Tally) Describe() string {
	_, errors, _ := t.read()
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(errors)) {
		parts = append(parts, fmt.Sprintf("%d × %s", errors[kind], kind))
	}
	return strings.Join(parts, ", ")
}

// Err returns an error if too many operations failed.
func (t *Tally) Err() error {
	operations, _, first := t.read()
	if rate := t.Rate(); rate > t.maxRate {
		return fmt.Errorf("%.2f %% of %d operations failed, more than %.2f %% (--max-error-rate): %s; first error: %s",
			100*rate, operations, 100*t.maxRate, t.Describe(), first)
	}
	return nil
}

// MarshalJSON encodes the counts.
func (t *Tally) MarshalJSON() ([]byte, error) {
	operations, errors, first := t.read()
	return json.Marshal(map[string]any{
		"operations": operations, "byKind": errors, "rate": t.Rate(), "maxRate": t.maxRate, "first": first,
	})
}

// UnmarshalJSON decodes the output of MarshalJSON.
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
