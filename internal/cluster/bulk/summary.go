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
	// Latencies from a microsecond to two minutes, to three digits.
	lowestMicros  = 1
	highestMicros = 120_000_000
	digits        = 3
)

// Summary is what a run has done.
type Summary struct {
	Wanted  int `json:"wanted"`
	Done    int `json:"done"`
	Skipped int `json:"skipped"` // were as wanted before
	Failed  int `json:"failed"`

	Seconds   float64 `json:"seconds"`
	PerSecond float64 `json:"perSecond"`
	P50Millis float64 `json:"p50Millis"`
	P99Millis float64 `json:"p99Millis"`
	MaxMillis float64 `json:"maxMillis"`

	// Errors counts by kind, retried ones too.
	Errors       map[string]int `json:"errors"`
	FirstFailure string         `json:"firstFailure,omitempty"`
	Interrupted  bool           `json:"interrupted"`

	// NextFirst follows all names of the prefix that were there before a creation.
	NextFirst int `json:"-"`
}

// Print writes the summary for people; verb and kind are like "created", "nodes".
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

// recorder gathers a summary from many workers.
type recorder struct {
	mu        sync.Mutex
	start     time.Time
	result    Summary
	latencies *hdrhistogram.Histogram
}

func newRecorder(wanted int, now time.Time) *recorder {
	return &recorder{
		start:     now,
		result:    Summary{Wanted: wanted, Errors: map[string]int{}},
		latencies: hdrhistogram.New(lowestMicros, highestMicros, digits),
	}
}

func (r *recorder) locked(change func(*Summary)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.result)
}

func (r *recorder) done()                 { r.locked(func(s *Summary) { s.Done++ }) }
func (r *recorder) skipped()              { r.locked(func(s *Summary) { s.Skipped++ }) }
func (r *recorder) errorSeen(kind string) { r.locked(func(s *Summary) { s.Errors[kind]++ }) }

func (r *recorder) failed(err error) (failures int) {
	r.locked(func(s *Summary) {
		if s.Failed == 0 {
			s.FirstFailure = err.Error()
		}
		s.Failed++
		failures = s.Failed
	})
	return failures
}

func (r *recorder) latency(took time.Duration) {
	micros := min(max(took.Microseconds(), lowestMicros), highestMicros)
	r.locked(func(*Summary) {
		// In range, so it cannot fail.
		_ = r.latencies.RecordValue(micros)
	})
}

func (r *recorder) finished() (finished int) {
	r.locked(func(s *Summary) { finished = s.Done + s.Skipped + s.Failed })
	return finished
}

func (r *recorder) summary(now time.Time) Summary {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.result
	s.Seconds = now.Sub(r.start).Seconds()
	if s.Seconds > 0 {
		s.PerSecond = float64(s.Done) / s.Seconds
	}
	s.P50Millis = float64(r.latencies.ValueAtQuantile(50)) / 1000
	s.P99Millis = float64(r.latencies.ValueAtQuantile(99)) / 1000
	s.MaxMillis = float64(r.latencies.Max()) / 1000
	return s
}
