package experiment

import (
	"cmp"
	"math"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
)

const callDurations = "apiserver_request_duration_seconds"

// longRunning are verbs whose latency says nothing, because the client decides how long a request lasts.
var longRunning = []string{"WATCH", "WATCHLIST", "CONNECT", "PROXY"}

// Call is one kind of API call, with percentiles of its latency in seconds. The percentiles come from a
// histogram of the API server. They therefore exclude client and network, and their precision is limited
// by the buckets of the histogram.
type Call struct {
	Verb, Resource, Subresource, Scope string
	Count                              int64
	P50, P90, P99                      float64
}

// Title returns the name of the call in tables, such as "PATCH pods/status" or "LIST pods (cluster)".
func (c Call) Title() string {
	if c.Verb == "" {
		return ""
	}
	name := c.Verb + " " + c.Resource
	if c.Subresource != "" {
		name += "/" + c.Subresource
	}
	if c.Scope != "resource" {
		name += " (" + c.Scope + ")"
	}
	return name
}

// mutates reports whether the call changes objects. The verb DELETE may mean one object or a collection;
// the scope tells which.
func (c Call) mutates() bool {
	return slices.Contains([]string{"POST", "PUT", "PATCH", "APPLY", "DELETE"}, c.Verb)
}

// reads reports whether the call reads objects.
func (c Call) reads() bool { return c.Verb == "GET" || c.Verb == "LIST" }

// callKey identifies a kind of call.
type callKey struct{ verb, resource, subresource, scope string }

// durations are histograms of request durations by kind of call, summed over all API servers.
type durations map[callKey]Histogram

// add adds the histograms of one API server.
func (d durations) add(family *dto.MetricFamily) {
	for _, metric := range family.GetMetric() {
		labels := labelsOf(metric)
		key := callKey{labels["verb"], labels["resource"], labels["subresource"], labels["scope"]}
		if key.resource == "" || slices.Contains(longRunning, key.verb) || strings.HasPrefix(key.subresource, "/") {
			continue
		}
		d[key] = d[key].Plus(histogramOf(metric.GetHistogram()))
	}
}

// since returns the calls that were made after before was read.
func (d durations) since(before durations) []Call {
	var calls []Call
	for key, histogram := range d {
		h := histogram.Minus(before[key])
		if h.Count() == 0 {
			continue
		}
		calls = append(calls, Call{
			Verb: key.verb, Resource: key.resource, Subresource: key.subresource, Scope: key.scope,
			Count: int64(h.Count()), P50: h.Quantile(0.5), P90: h.Quantile(0.9), P99: h.Quantile(0.99),
		})
	}
	slices.SortFunc(calls, func(a, b Call) int {
		return cmp.Or(cmp.Compare(a.Verb, b.Verb), cmp.Compare(b.Count, a.Count), cmp.Compare(a.Title(), b.Title()))
	})
	return calls
}

// CallTable appends a table of the kinds of calls that were made at least ten times.
func (r *Result) CallTable(title string, calls []Call) {
	const minCalls = 10
	t := r.Table(title, "call", "calls", "p50, ms", "p90, ms", "p99, ms")
	for _, c := range calls {
		if c.Count >= minCalls {
			t.Add(c.Title(), c.Count, millis(c.P50), millis(c.P90), millis(c.P99))
		}
	}
}

// millis converts seconds to milliseconds, rounded to one decimal.
func millis(seconds float64) float64 { return math.Round(seconds*1e4) / 10 }

func labelsOf(metric *dto.Metric) map[string]string {
	labels := map[string]string{}
	for _, pair := range metric.GetLabel() {
		labels[pair.GetName()] = pair.GetValue()
	}
	return labels
}
