package bulk

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	// The histogram records latencies from 1 µs to 2 minutes with three significant digits.
	lowestMicros      = 1
	highestMicros     = 120_000_000
	significantDigits = 3
)

// Summary is the result of a run. Latencies are those of successful attempts.
type Summary struct {
	Wanted  int `json:"wanted"`
	Done    int `json:"done"`
	Skipped int `json:"skipped"` // objects that were already in the wanted state
	Failed  int `json:"failed"`

	Seconds   float64 `json:"seconds"`
	PerSecond float64 `json:"perSecond"`
	P50Millis float64 `json:"p50Millis"`
	P99Millis float64 `json:"p99Millis"`
	MaxMillis float64 `json:"maxMillis"`

	// Errors counts the errors of all attempts by [ErrorKind].
	Errors       map[string]int `json:"errors"`
	FirstFailure string         `json:"firstFailure,omitempty"`
	Interrupted  bool           `json:"interrupted"`

	// NextFirst is the highest number that an object with the prefix of the range had before the run,
	// plus 1.
	NextFirst int `json:"-"`
}

// Print writes the summary as text. verb is a participle such as "created", kind a plural such as "nodes",
// and whenSkipped the reason for skipping objects, such as "existed".
func (s Summary) Print(w io.Writer, verb, kind, whenSkipped string) {
	fmt.Fprintf(w, "%d of %d %s %s in %.1fs (%.0f/s)", s.Done, s.Wanted, kind, verb, s.Seconds, s.PerSecond)
	if s.Skipped > 0 {
		fmt.Fprintf(w, ", %d %s and were skipped", s.Skipped, whenSkipped)
	}
	if s.Failed > 0 {
		fmt.Fprintf(w, ", %d failed", s.Failed)
	}
	if s.Interrupted {
		fmt.Fprintf(w, ", interrupted")
	}
	fmt.Fprintln(w)
	if s.Done > 0 {
		fmt.Fprintf(w, "latency: p50 %.1f ms, p99 %.1f ms, max %.1f ms\n", s.P50Millis, s.P99Millis, s.MaxMillis)
	}
	for _, kind := range slices.Sorted(maps.Keys(s.Errors)) {
		fmt.Fprintf(w, "errors: %d × %s\n", s.Errors[kind], kind)
	}
}

// statistics collects the summary of a run. It is safe for concurrent use.
type statistics struct {
	mu        sync.Mutex
	start     time.Time
	result    Summary
	latencies *hdrhistogram.Histogram
}

func newStatistics(wanted int, now time.Time) *statistics {
	return &statistics{
		start:     now,
		result:    Summary{Wanted: wanted, Errors: map[string]int{}},
		latencies: hdrhistogram.New(lowestMicros, highestMicros, significantDigits),
	}
}

// update changes the summary under the lock.
func (s *statistics) update(change func(*Summary)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.result)
}

func (s *statistics) done()    { s.update(func(result *Summary) { result.Done++ }) }
func (s *statistics) skipped() { s.update(func(result *Summary) { result.Skipped++ }) }
func (s *statistics) countError(kind string) {
	s.update(func(result *Summary) { result.Errors[kind]++ })
}

func (s *statistics) failed(err error) (failures int) {
	s.update(func(result *Summary) {
		if result.Failed == 0 {
			result.FirstFailure = err.Error()
		}
		result.Failed++
		failures = result.Failed
	})
	return failures
}

func (s *statistics) latency(took time.Duration) {
	micros := min(max(took.Microseconds(), lowestMicros), highestMicros)
	s.update(func(*Summary) {
		// RecordValue fails only for a value outside the range of the histogram.
		_ = s.latencies.RecordValue(micros)
	})
}

// finished returns the number of objects that are done, skipped or failed.
func (s *statistics) finished() (finished int) {
	s.update(func(result *Summary) { finished = result.Done + result.Skipped + result.Failed })
	return finished
}

func (s *statistics) summary(now time.Time) Summary {
	s.mu.Lock()
	defer s.mu.Unlock()
	result := s.result
	result.Seconds = now.Sub(s.start).Seconds()
	if result.Seconds > 0 {
		result.PerSecond = float64(result.Done) / result.Seconds
	}
	result.P50Millis = float64(s.latencies.ValueAtQuantile(50)) / 1000
	result.P99Millis = float64(s.latencies.ValueAtQuantile(99)) / 1000
	result.MaxMillis = float64(s.latencies.Max()) / 1000
	return result
}
