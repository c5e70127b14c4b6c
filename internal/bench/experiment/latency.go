package experiment

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	// Range and precision of the histogram: 1 µs to 10 min, three significant digits.
	lowestMicros  = 1
	highestMicros = 600_000_000
	digits        = 3
)

// Latencies is a histogram of the durations of operations. It is safe for concurrent use.
type Latencies struct {
	mu        sync.Mutex
	histogram *hdrhistogram.Histogram
}

// NewLatencies returns an empty histogram.
func NewLatencies() *Latencies {
	return &Latencies{histogram: hdrhistogram.New(lowestMicros, highestMicros, digits)}
}

// Record adds a duration. Durations above 10 min count as 10 min.
func (l *Latencies) Record(took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// RecordValue cannot fail, because the value is within the range of the histogram.
	_ = l.histogram.RecordValue(min(max(took.Microseconds(), lowestMicros), highestMicros))
}

// Millis returns a percentile (0 to 100) in milliseconds; 0 if the histogram is empty.
func (l *Latencies) Millis(percentile float64) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return float64(l.histogram.ValueAtPercentile(percentile)) / 1000
}

// Seconds returns a percentile (0 to 100) in seconds.
func (l *Latencies) Seconds(percentile float64) float64 { return l.Millis(percentile) / 1000 }

// Merge adds the durations of another histogram.
func (l *Latencies) Merge(other *Latencies) {
	copied := other.copy()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.histogram.Merge(copied)
}

// copy returns a copy of the histogram.
func (l *Latencies) copy() *hdrhistogram.Histogram {
	l.mu.Lock()
	defer l.mu.Unlock()
	return hdrhistogram.Import(l.histogram.Export())
}

// Count returns the number of durations in the histogram.
func (l *Latencies) Count() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.histogram.TotalCount()
}
