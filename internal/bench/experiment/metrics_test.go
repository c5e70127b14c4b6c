package experiment

import (
	"math"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// metricsPage is an extract of the metrics of a kube-apiserver.
const metricsPage = `# HELP apiserver_request_total Counter
# TYPE apiserver_request_total counter
apiserver_request_total{code="200",resource="pods",verb="GET"} 10
apiserver_request_total{code="404",resource="pods",verb="GET"} 5
apiserver_request_total{code="200",resource="pods",verb="WATCH"} 99
# TYPE unrelated_total counter
unrelated_total 3
# TYPE apiserver_request_duration_seconds histogram
apiserver_request_duration_seconds_bucket{resource="pods",scope="resource",subresource="",verb="GET",le="0.1"} 50
apiserver_request_duration_seconds_bucket{resource="pods",scope="resource",subresource="",verb="GET",le="1"} 90
apiserver_request_duration_seconds_bucket{resource="pods",scope="resource",subresource="",verb="GET",le="+Inf"} 100
apiserver_request_duration_seconds_sum{resource="pods",scope="resource",subresource="",verb="GET"} 20
apiserver_request_duration_seconds_count{resource="pods",scope="resource",subresource="",verb="GET"} 100
apiserver_request_duration_seconds_bucket{resource="pods",scope="cluster",subresource="",verb="WATCH",le="+Inf"} 7
apiserver_request_duration_seconds_count{resource="pods",scope="cluster",subresource="",verb="WATCH"} 7
`

func TestScrapeReadsNeededFamilies(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if _, err := w.Write([]byte(metricsPage)); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	families, err := scrape(t.Context(), server.Client(), server.URL, neededOf(apiServer))
	if err != nil || len(families) != 2 || families["unrelated_total"] != nil {
		t.Fatalf("scrape() = %v, %v, want 2 families and no unrelated_total", families, err)
	}
	counts := durations{}
	counts.add(families[callDurations])
	calls := counts.since(durations{})
	if len(calls) != 1 || calls[0].Title() != "GET pods" || calls[0].Count != 100 {
		t.Fatalf("since() = %+v, want 100 calls of GET pods", calls)
	}
	// 50 % are at most 0.1 s and 90 % at most 1 s. Quantiles are interpolated linearly in a bucket.
	if c := calls[0]; math.Abs(c.P50-0.1) > 1e-9 || math.Abs(c.P90-1) > 1e-9 || c.P99 != 1 {
		t.Errorf("since()[0] = %+v, want P50 0.1, P90 1 and P99 1", c)
	}

	totals, histograms := map[string]float64{}, map[string]Histogram{}
	rules[0].collect(families["apiserver_request_total"], totals, histograms)
	if len(totals) != 1 || totals["GET pods"] != 15 {
		t.Errorf("collect() = totals %v, want 15 of GET pods", totals)
	}
}

func TestScrapeFailsIfPageIsMissing(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	if _, err := scrape(t.Context(), server.Client(), server.URL, neededOf(apiServer)); err == nil {
		t.Error("scrape() of a missing page succeeded, want an error")
	}
}

func TestQuantileInterpolatesInBucket(t *testing.T) {
	inf := math.Inf(1)
	h := Histogram{Bounds: []float64{1, 2, 4, inf}, Counts: []float64{10, 10, 30, 40}}
	for q, want := range map[float64]float64{0.125: 0.5, 0.25: 1, 0.5: 3, 0.75: 4, 0.99: 4} {
		if got := h.Quantile(q); math.Abs(got-want) > 1e-9 {
			t.Errorf("Quantile(%g) = %g, want %g", q, got, want)
		}
	}
	if empty := (Histogram{}).Quantile(0.5); !math.IsNaN(empty) {
		t.Errorf("Quantile(0.5) of an empty histogram = %g, want NaN", empty)
	}
	if unbounded := (Histogram{Bounds: []float64{inf}, Counts: []float64{3}}).Quantile(0.5); !math.IsNaN(unbounded) {
		t.Errorf("Quantile(0.5) without finite bounds = %g, want NaN", unbounded)
	}
}

func TestHistogramMinusHandlesRestart(t *testing.T) {
	bounds := []float64{1, math.Inf(1)}
	before, now := Histogram{bounds, []float64{10, 20}}, Histogram{bounds, []float64{11, 25}}
	if got := now.Minus(before); got.Count() != 5 || got.Counts[0] != 1 {
		t.Errorf("Minus() = %+v, want 5 observations, 1 of them in the first bucket", got)
	}
	// After a restart of the process, all its observations are new.
	restarted := Histogram{bounds, []float64{2, 3}}
	if got := restarted.Minus(before); got.Count() != 3 {
		t.Errorf("Minus() after a restart = %+v, want 3 observations", got)
	}
	if before.Counts[1] != 20 || now.Counts[1] != 25 {
		t.Errorf("after Minus() its operands are %+v and %+v, want them unchanged", now, before)
	}
}

func TestRateOmitsSampleAfterRestart(t *testing.T) {
	l, r := newLines(), rule{kind: rate, plot: "requests", unit: "/s", factor: 1}
	start := time.Now()
	for i, value := range []float64{100, 110, 130, 5, 25} {
		l.take(r, ", here", map[string]float64{"GET": value}, nil, start.Add(time.Duration(i)*2*time.Second), float64(2*i))
	}
	// The first sample, and the first sample after a restart, give no rate.
	want := []Point{{2, 5}, {4, 10}, {8, 10}}
	series := l.all()
	if len(series) != 1 || series[0].Plot != "requests, here" || len(series[0].Points) != len(want) {
		t.Fatalf("all() = %+v, want one series of %q with the points %v", series, "requests, here", want)
	}
	for i, p := range series[0].Points {
		if p != want[i] {
			t.Errorf("point %d = %v, want %v", i, p, want[i])
		}
	}
}

func TestSeriesAreBounded(t *testing.T) {
	l := newLines()
	for i := range 3 * maxPoints {
		l.add(Series{Plot: "p", Name: "n"}, float64(i), 1)
	}
	for i := range 3 * maxLines {
		l.add(Series{Plot: "many", Name: string(rune('a' + i))}, 0, float64(i+1))
	}
	series := l.all()
	if n := len(series[0].Points); n > maxPoints || n < maxPoints/4 {
		t.Errorf("the series has %d points, want %d to %d", n, maxPoints/4, maxPoints)
	}
	if len(series) != 1+maxLines {
		t.Errorf("the plot has %d lines, want %d", len(series)-1, maxLines)
	}
}
