package schedtest

import (
	"testing"

	dto "github.com/prometheus/client_model/go"
	"k8s.io/component-base/metrics/legacyregistry"
)

// CounterDelta returns a function that returns the increase of a counter since this call.
func CounterDelta(t *testing.T, read func() (float64, error)) (delta func() int) {
	t.Helper()
	before, err := read()
	if err != nil {
		t.Fatal(err)
	}
	return func() int {
		now, err := read()
		if err != nil {
			t.Fatal(err)
		}
		return int(now - before)
	}
}

// CounterSum returns a function that reads the sum of a counter over all its labels. A counter that does not exist yet is 0.
func CounterSum(name string) func() (float64, error) {
	return func() (sum float64, err error) {
		metrics, err := gather(name)
		for _, metric := range metrics {
			sum += metric.GetCounter().GetValue()
		}
		return sum, err
	}
}

// CounterValue returns a function that reads the counter whose first label has a value, or the counter without
// labels if label is "". A counter that does not exist yet is 0.
func CounterValue(name, label string) func() (float64, error) {
	return func() (float64, error) {
		metrics, err := gather(name)
		for _, metric := range metrics {
			labels := metric.GetLabel()
			if len(labels) == 0 && label == "" || len(labels) > 0 && labels[0].GetValue() == label {
				return metric.GetCounter().GetValue(), nil
			}
		}
		return 0, err
	}
}

// gather returns the metrics with a name, one for each combination of labels.
func gather(name string) ([]*dto.Metric, error) {
	families, err := legacyregistry.DefaultGatherer.Gather()
	for _, family := range families {
		if err == nil && family.GetName() == name {
			return family.GetMetric(), nil
		}
	}
	return nil, err
}
