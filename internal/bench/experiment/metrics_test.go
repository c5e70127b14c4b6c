package experiment

import (
	"math"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

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
	families, err := scrape(t.Context(), server.Client(), server.URL, metricsOf(apiServer))
	if err != nil || len(families) != 2 || families["unrelated_total"] != nil {
		t.Fatalf("scrape returned %v, %v; want the two needed families", families, err)
	}
	counts := durations{}
	counts.add(families[callDurations])
	calls := counts.since(durations{})
	if len(calls) != 1 || calls[0].Title() != "GET pods" || calls[0].Count != 100 {
		t.Fatalf("the calls are %+v; want 100 calls of GET pods", calls)
	}
	// 50 % are at most 0.1 s and 90 % at most 1 s. Quantiles are interpolated linearly in a bucket.
	if c := calls[0]; math.Abs(c.P50-0.1) > 1e-9 || math.Abs(c.P90-1) > 1e-9 || c.P99 != 1 {
		t.Errorf("the percentiles of %+v are wrong; want P50 0.1, P90 1 and P99 1", c)
	}

	totals, histograms := map[string]float64{}, map[string]Histogram{}
	rules[0].collect(families["apiserver_request_total"], totals, histograms)
	if len(totals) != 1 || totals["GET pods"] != 15 {
		t.Errorf("the totals are %v; want 15 for GET pods", totals)
	}
}

func TestMetricsOfAPage(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if _, err := w.Write([]byte(metricsPage)); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	const requests = "apiserver_request_total"
	page, err := scrape(t.Context(), server.Client(), server.URL, map[string]bool{requests: true, callDurations: true})
	if err != nil {
		t.Fatal(err)
	}
	m := Metrics(page)
	if all, gets, none := m.Sum(requests), m.Sum(requests, "verb", "GET", "resource", "pods"), m.Sum(requests, "verb", "PUT"); all != 114 || gets != 15 || none != 0 {
		t.Errorf("the sums are %v, %v and %v; want 114, 15 and 0", all, gets, none)
	}
	if count, sum := m.Observations(callDurations); count != 107 || sum != 20 {
		t.Errorf("%v observations have the sum %v, want 107 and 20", count, sum)
	}
	if m.Sum("absent") != 0 || m.Histogram("absent").Count() != 0 {
		t.Error("a metric that is not on the page has values")
	}
}

func TestScrapeFailsOnHTTPError(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	if _, err := scrape(t.Context(), server.Client(), server.URL, metricsOf(apiServer)); err == nil {
		t.Error("reading a missing page returned no error")
	}
}

func TestQuantile(t *testing.T) {
	inf := math.Inf(1)
	h := Histogram{Bounds: []float64{1, 2, 4, inf}, Counts: []float64{10, 10, 30, 40}}
	for q, want := range map[float64]float64{0.125: 0.5, 0.25: 1, 0.5: 3, 0.75: 4, 0.99: 4} {
		if got := h.Quantile(q); math.Abs(got-want) > 1e-9 {
			t.Errorf("quantile %g is %g, want %g", q, got, want)
		}
	}
	if empty := (Histogram{}).Quantile(0.5); !math.IsNaN(empty) {
		t.Errorf("the median of an empty histogram is %g", empty)
	}
	if only := (Histogram{Bounds: []float64{inf}, Counts: []float64{3}}).Quantile(0.5); !math.IsNaN(only) {
		t.Errorf("the median without finite bounds is %g", only)
	}
}

func TestHistogramMinus(t *testing.T) {
	bounds := []float64{1, math.Inf(1)}
	before, now := Histogram{bounds, []float64{10, 20}}, Histogram{bounds, []float64{11, 25}}
	if got := now.Minus(before); got.Count() != 5 || got.Counts[0] != 1 {
		t.Errorf("Minus returned %+v; want 1 observation up to 1, and 5 in all", got)
	}
	// After a restart of the process, all its observations are new.
	restarted := Histogram{bounds, []float64{2, 3}}
	if got := restarted.Minus(before); got.Count() != 3 {
		t.Errorf("after a restart Minus returned %+v; want all 3 observations", got)
	}
	if before.Counts[1] != 20 || now.Counts[1] != 25 {
		t.Error("Minus modified its operands")
	}
}

func TestRatesAndRestarts(t *testing.T) {
	const interval = 2 * time.Second
	l, r := newLines(), rule{conversion: rate, plot: "requests", unit: "/s", factor: 1}
	begun := time.Now()
	for i, value := range []float64{100, 110, 130, 5, 25} {
		l.addSample(r, ", here", map[string]float64{"GET": value}, nil, begun.Add(time.Duration(i)*interval), float64(2*i))
	}
	// The first sample, and the first sample after a restart of the process, yield no rate.
	want := []Point{{2, 5}, {4, 10}, {8, 10}}
	series := l.largest()
	if len(series) != 1 || series[0].Plot != "requests, here" || len(series[0].Points) != len(want) {
		t.Fatalf("the series are %+v; want one with the points %v", series, want)
	}
	for i, p := range series[0].Points {
		if p != want[i] {
			t.Errorf("point %d is %v, want %v", i, p, want[i])
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
	series := l.largest()
	if n := len(series[0].Points); n > maxPoints || n < maxPoints/4 {
		t.Errorf("the series has %d points; want %d to %d", n, maxPoints/4, maxPoints)
	}
	if len(series) != 1+maxLines {
		t.Errorf("the second chart has %d lines; want %d", len(series)-1, maxLines)
	}
}
