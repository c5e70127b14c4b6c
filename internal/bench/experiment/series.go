package experiment

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
)

const (
	// maxPoints is the maximum number of points of a series. When a series reaches it, every second
	// point is dropped. This bounds the size of a result, whatever the duration of the run.
	maxPoints = 4096
	// maxLines is the maximum number of lines of a chart. The lines with the largest sums are kept.
	maxLines = 8
)

// lines are the series of one sampler. Their keys consist of the title of the chart and the name.
type lines struct {
	order []string // keys in the order of creation
	byKey map[string]*Series
	// counters and histograms are the values of the last sample.
	counters   map[string]reading
	histograms map[string]Histogram
}

// reading is the value of a counter at a time.
type reading struct {
	value float64
	at    time.Time
}

func newLines() *lines {
	return &lines{byKey: map[string]*Series{}, counters: map[string]reading{}, histograms: map[string]Histogram{}}
}

// add appends a point to the series with the plot and name of s. NaN and infinite values are
// dropped.
func (l *lines) add(s Series, seconds, value float64) {
	if math.IsNaN(value) || math.IsInf(value, 0) {
		return
	}
	key := s.Plot + "\x00" + s.Name
	own := l.byKey[key]
	if own == nil {
		own = &s
		l.byKey[key] = own
		l.order = append(l.order, key)
	}
	if len(own.Points) == maxPoints {
		own.Points = thin(own.Points)
	}
	own.Points = append(own.Points, Point{math.Round(seconds*10) / 10, round(value)})
}

// thin drops every second point.
func thin(points []Point) []Point {
	half := points[:0]
	for i := 0; i < len(points); i += 2 {
		half = append(half, points[i])
	}
	return half
}

// round rounds to four significant digits, which is more than a chart can show.
func round(value float64) float64 {
	if value == 0 {
		return 0
	}
	unit := math.Pow(10, math.Floor(math.Log10(math.Abs(value)))-3)
	if unit == 0 {
		return 0
	}
	if unit < 1 {
		return math.Round(value*math.Round(1/unit)) / math.Round(1/unit)
	}
	return math.Round(value/unit) * unit
}

// addSample appends the points of one sample of a rule. totals and histograms are the results of collect,
// and seconds is the time of the sample since the start of the run.
func (l *lines) addSample(r rule, suffix string, totals map[string]float64, histograms map[string]Histogram, at time.Time, seconds float64) {
	for _, name := range sortedKeys(totals) {
		value := totals[name]
		if r.conversion == rate {
			key := r.plot + "\x00" + name
			before, known := l.counters[key]
			l.counters[key] = reading{value, at}
			if !known || value < before.value {
				continue // first sample, or first sample after a restart of the process
			}
			value = (value - before.value) / at.Sub(before.at).Seconds()
		}
		l.add(r.series(name, suffix), seconds, value*r.factor)
	}
	for _, name := range sortedKeys(histograms) {
		key := r.plot + "\x00" + name
		since := histograms[name].Minus(l.histograms[key])
		_, known := l.histograms[key]
		l.histograms[key] = histograms[name]
		if known && since.Count() > 0 {
			l.add(r.series(name, suffix), seconds, since.Quantile(r.q)*r.factor)
		}
	}
}

// series returns the series of a rule without points.
func (r rule) series(name, suffix string) Series {
	if name == "" {
		name = r.name
	}
	return Series{Plot: r.plot + suffix, Name: name, X: Seconds, Unit: r.unit, LogY: r.logY}
}

// collect adds the values of a metric family to the sums of a rule. The sums are by the name of the
// series.
func (r rule) collect(family *dto.MetricFamily, totals map[string]float64, histograms map[string]Histogram) {
	for _, metric := range family.GetMetric() {
		labels := labelsOf(metric)
		if r.include != nil && !r.include(labels) {
			continue
		}
		var parts []string
		for _, label := range r.by {
			if labels[label] != "" {
				parts = append(parts, labels[label])
			}
		}
		name := strings.Join(parts, " ")
		if r.conversion == quantile {
			histograms[name] = histograms[name].Plus(histogramOf(metric.GetHistogram()))
			continue
		}
		totals[name] += metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + metric.GetUntyped().GetValue()
	}
}

// largest returns the maxLines series of each chart whose sums are largest. It omits series whose values
// are all zero.
func (l *lines) largest() []Series {
	var plots []string
	byPlot := map[string][]Series{}
	for _, key := range l.order {
		s := *l.byKey[key]
		if byPlot[s.Plot] == nil {
			plots = append(plots, s.Plot)
		}
		byPlot[s.Plot] = append(byPlot[s.Plot], s)
	}
	var all []Series
	for _, plot := range plots {
		series := slices.DeleteFunc(byPlot[plot], func(s Series) bool { return total(s) == 0 })
		slices.SortStableFunc(series, func(a, b Series) int { return cmp.Compare(total(b), total(a)) })
		all = append(all, series[:min(len(series), maxLines)]...)
	}
	return all
}

// mean adds up the lines of a chart at each sample, and returns the mean of these sums. since is the first
// second of the run to include. A line without a point at a sample counts as 0.
func (l *lines) mean(plot string, since float64) float64 {
	sums := map[float64]float64{}
	for _, s := range l.byKey {
		if s.Plot != plot {
			continue
		}
		for _, p := range s.Points {
			if p[0] >= since {
				sums[p[0]] += p[1]
			}
		}
	}
	all := 0.0
	for _, sum := range sums {
		all += sum
	}
	return all / max(float64(len(sums)), 1)
}

func total(s Series) (sum float64) {
	for _, point := range s.Points {
		sum += point[1]
	}
	return sum
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
