package experiment

import (
	"math"
	"slices"

	dto "github.com/prometheus/client_model/go"
)

// Histogram is a Prometheus histogram: the number of observations up to each bound.
type Histogram struct {
	// Bounds are ascending, and the last bound is +Inf. Counts are cumulative.
	Bounds []float64
	Counts []float64
}

func histogramOf(h *dto.Histogram) Histogram {
	var own Histogram
	for _, bucket := range h.GetBucket() {
		own.Bounds = append(own.Bounds, bucket.GetUpperBound())
		own.Counts = append(own.Counts, float64(bucket.GetCumulativeCount()))
	}
	if n := len(own.Bounds); n == 0 || !math.IsInf(own.Bounds[n-1], 1) {
		own.Bounds = append(own.Bounds, math.Inf(1))
		own.Counts = append(own.Counts, float64(h.GetSampleCount()))
	}
	return own
}

// Plus returns the sum with a histogram that has the same bounds or is empty.
func (h Histogram) Plus(other Histogram) Histogram { return h.combine(other, 1) }

// Minus returns the observations since other was read. If the process was restarted in between,
// its counters restarted at zero, so all observations of h count.
func (h Histogram) Minus(other Histogram) Histogram {
	if other.Count() > h.Count() {
		return h
	}
	return h.combine(other, -1)
}

func (h Histogram) combine(other Histogram, sign float64) Histogram {
	if len(h.Bounds) == 0 && sign > 0 {
		return other
	}
	if !slices.Equal(h.Bounds, other.Bounds) {
		return h
	}
	combined := Histogram{Bounds: h.Bounds, Counts: slices.Clone(h.Counts)}
	for i := range combined.Counts {
		combined.Counts[i] += sign * other.Counts[i]
	}
	return combined
}

// Count returns the number of observations.
func (h Histogram) Count() float64 {
	if len(h.Counts) == 0 {
		return 0
	}
	return h.Counts[len(h.Counts)-1]
}

// Quantile returns a quantile (0 to 1) as the function histogram_quantile of Prometheus estimates
// it: linear within a bucket, and the largest finite bound beyond it. It is NaN for an empty
// histogram.
func (h Histogram) Quantile(q float64) float64 {
	total := h.Count()
	if total == 0 {
		return math.NaN()
	}
	rank := q * total
	i := 0
	for i < len(h.Counts)-1 && h.Counts[i] < rank {
		i++
	}
	if math.IsInf(h.Bounds[i], 1) {
		if i == 0 {
			return math.NaN()
		}
		return h.Bounds[i-1]
	}
	lower, below := 0.0, 0.0
	if i > 0 {
		lower, below = h.Bounds[i-1], h.Counts[i-1]
	}
	if h.Counts[i] == below {
		return h.Bounds[i]
	}
	return lower + (h.Bounds[i]-lower)*(rank-below)/(h.Counts[i]-below)
}
