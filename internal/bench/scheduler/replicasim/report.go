package replicasim

import (
	"fmt"
	"reflect"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
)

// Report implements experiment.Reporter. It appends a table of the outcomes, and charts that show figures
// by the number of replicas. A chart has one line per fan-out and fraction of stragglers.
func (r *Result) Report(to *experiment.Result) {
	table := to.Table("Rounds", "stragglers", "fan-out", "replicas", "pods, /s", "rounds", "round p50, ms", "p99, ms",
		"leader's CPU, cores", "leader's share of CPU, %", "total CPU, µs/pod", "leader's traffic, KB/pod", "leader's traffic, MB/s", "absent answers")
	for i := range r.Outcomes {
		o := &r.Outcomes[i]
		table.Add(o.Stragglers, o.Fanout, o.Replicas, o.PodsPerSecond, o.Rounds, o.RoundMillisP50, o.RoundMillisP99,
			o.LeaderCores, 100*o.LeaderShare, o.CPUMicrosPerPod, o.LeaderBytesPerPod/1000, o.LeaderMBPerSecond, o.AbsentAnswers)
		to.Errors.AddMany(int64(o.Pods), nil)
		name := fmt.Sprintf("fan-out %d", o.Fanout)
		if o.Stragglers > 0 {
			name += fmt.Sprintf(", %g %% stragglers", 100*o.Stragglers)
		}
		for _, line := range []struct {
			plot, unit string
			value      float64
		}{
			{"Pods per second", "/s", o.PodsPerSecond},
			{"Round p50", "ms", o.RoundMillisP50},
			{"Round p99", "ms", o.RoundMillisP99},
			{"Leader's cores", "cores", o.LeaderCores},
			{"Leader's share of CPU", "%", 100 * o.LeaderShare},
			{"Leader's traffic per pod", "KB/pod", o.LeaderBytesPerPod / 1000},
			{"Total CPU per pod", "µs/pod", o.CPUMicrosPerPod},
		} {
			series := experiment.Series{Plot: line.plot, Name: name, X: "replicas", Unit: line.unit, LogX: true, LogY: true}
			to.Line(series, float64(o.Replicas), line.value)
		}
	}
}

// Report implements experiment.Reporter. It appends a table and charts of measured and simulated rounds.
func (c *Checks) Report(to *experiment.Result) {
	table := to.Table("Measured and simulated rounds", "replicas", "measured round, ms", "simulated, ms", "measured CPU per round, ms", "simulated, ms")
	for _, x := range c.Checked {
		table.Add(x.Replicas, x.RealRoundMillis, x.SimulatedRoundMillis, x.RealCPUMillis, x.SimulatedCPUMillis)
		to.Errors.AddMany(checkRounds, nil)
		for _, line := range []struct {
			plot, name string
			value      float64
		}{
			{"Round", "measured", x.RealRoundMillis}, {"Round", "simulated", x.SimulatedRoundMillis},
			{"CPU per round", "measured", x.RealCPUMillis}, {"CPU per round", "simulated", x.SimulatedCPUMillis},
		} {
			to.Line(experiment.Series{Plot: line.plot, Name: line.name, X: "replicas", Unit: "ms"}, float64(x.Replicas), line.value)
		}
	}
}

// Report implements experiment.Reporter. It appends a table of the costs by their JSON names.
func (c *Costs) Report(to *experiment.Result) {
	table := to.Table("Costs of "+c.Machine, "cost", "value")
	reportCosts(table, "", reflect.ValueOf(*c))
}

// reportCosts adds a row for each number in a struct of costs. The names start with the prefix.
func reportCosts(table *experiment.Table, prefix string, all reflect.Value) {
	for i := range all.NumField() {
		name, cost := prefix+all.Type().Field(i).Tag.Get("json"), all.Field(i)
		switch {
		case cost.Kind() == reflect.Struct:
			reportCosts(table, name+".", cost)
		case cost.CanInt():
			table.Add(name, float64(cost.Int()))
		case cost.CanFloat():
			table.Add(name, cost.Float())
		}
	}
}
