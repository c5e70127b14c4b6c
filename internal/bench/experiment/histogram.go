package experiment

import (
	"math"
	"slices"

	dto "github.com/prometheus/client_model/go"
)

// Histogram is a Prometheus histogram.
type Histogram struct {
	// Bounds are the upper bounds of the buckets in ascending order; the last is +Inf. Counts are the
	// numbers of observations up to each bound.
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

// Plus returns the sum of two histograms that have the same bounds. If the bounds differ, it returns h, or
// other if h is empty.
func (h Histogram) Plus(other Histogram) Histogram { return h.combine(other, 1) }

// Minus returns the observations of h since other, an earlier state of the same histogram. If h has fewer
// observations than other, the process was restarted with new counters, and Minus returns h.
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

// Quantile estimates a quantile (0 to 1) as the function histogram_quantile of Prometheus does: by linear
// interpolation within a bucket, or as the largest finite bound if the quantile is beyond that. It returns
// NaN for an empty histogram, and for one without finite bounds.
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
