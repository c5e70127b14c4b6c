package experiment

import (
	"context"
	"fmt"

	dto "github.com/prometheus/client_model/go"

	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
)

// Metrics are metric families of one component, by name.
type Metrics map[string]*dto.MetricFamily

// Metrics reads the metrics with these names from the page of a component.
func (c *Cluster) Metrics(ctx context.Context, name string, metrics ...string) (Metrics, error) {
	needed := map[string]bool{}
	for _, metric := range metrics {
		needed[metric] = true
	}
	for _, endpoint := range component.MetricsEndpoints(c.Config) {
		if endpoint.Component == name {
			return scrape(ctx, c.Sampler.client, endpoint.URL, needed)
		}
	}
	return nil, fmt.Errorf("the cluster has no component %s with metrics", name)
}

// Sum returns the sum of the values of a metric that have these labels, given as name and value in turn. It is 0 if
// there are none.
func (m Metrics) Sum(name string, labels ...string) (sum float64) {
	for _, metric := range m[name].GetMetric() {
		if hasLabels(metric, labels) {
			sum += metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + metric.GetUntyped().GetValue()
		}
	}
	return sum
}

// Histogram returns the sum of all histograms of a metric.
func (m Metrics) Histogram(name string) (sum Histogram) {
	for _, metric := range m[name].GetMetric() {
		sum = sum.Plus(histogramOf(metric.GetHistogram()))
	}
	return sum
}

// Observations returns the number of the observations of all histograms of a metric, and their sum.
func (m Metrics) Observations(name string) (count, sum float64) {
	for _, metric := range m[name].GetMetric() {
		count += float64(metric.GetHistogram().GetSampleCount())
		sum += metric.GetHistogram().GetSampleSum()
	}
	return count, sum
}

// hasLabels reports whether a metric has labels, given as name and value in turn.
func hasLabels(metric *dto.Metric, wanted []string) bool {
	labels := labelsOf(metric)
	for i := 0; i+1 < len(wanted); i += 2 {
		if labels[wanted[i]] != wanted[i+1] {
			return false
		}
	}
	return true
}
