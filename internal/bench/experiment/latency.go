package experiment

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	// Latencies from a microsecond to ten minutes, to three digits.
	lowestMicros  = 1
	highestMicros = 600_000_000
	digits        = 3
)

// Latencies are how long operations took. They are for many goroutines.
type Latencies struct {
	mu        sync.Mutex
	histogram *hdrhistogram.Histogram
}

// NewLatencies have none yet.
func NewLatencies() *Latencies {
	return &Latencies{histogram: hdrhistogram.New(lowestMicros, highestMicros, digits)}
}

// Record one. Beyond ten minutes it counts as ten minutes.
func (l *Latencies) Record(took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// In range, so it cannot fail.
	_ = l.histogram.RecordValue(min(max(took.Microseconds(), lowestMicros), highestMicros))
}

// Millis is a percentile, 0 to 100, in milliseconds; 0 if nothing was recorded.
func (l *Latencies) Millis(percentile float64) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return float64(l.histogram.ValueAtPercentile(percentile)) / 1000
}

// Seconds is a percentile in seconds.
func (l *Latencies) Seconds(percentile float64) float64 { return l.Millis(percentile) / 1000 }

// Merge adds what others have recorded.
func (l *Latencies) Merge(other *Latencies) {
	copied := other.copy()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.histogram.Merge(copied)
}

func (l *Latencies) copy() *hdrhistogram.Histogram {
	l.mu.Lock()
	defer l.mu.Unlock()
	return hdrhistogram.Import(l.histogram.Export())
}

// Count of what was recorded.
func (l *Latencies) Count() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.histogram.TotalCount()
}
