package replicasim

import (
	"testing"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
)

func TestCostsAreReportedByTheirJSONNames(t *testing.T) {
	costs, r := StoredCosts(), new(experiment.Result)
	costs.Report(r)
	found := map[any]any{}
	for _, row := range r.Tables[0].Rows {
		found[row[0]] = row[1]
	}
	if found["messageNanos"] != float64(costs.Message) || found["fold.groupNanos"] != float64(costs.Fold.Group) ||
		found["transportNanosPerByte"] != costs.TransportNanosPerByte {
		t.Errorf("the report contains %v; want the values of messageNanos, fold.groupNanos and transportNanosPerByte",
			found)
	}
}
