package ladder

import (
	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
)

const (
	// mustArrive and aimArrive are the shares of the due heartbeats that arrive.
	mustArrive, aimArrive = 0.95, 1.0
	// mustInTime is the share of the Leases that were renewed in time, in each sample.
	mustInTime = 0.99
	// Limits of Kubernetes' objectives for calls, in seconds. kubectl adds the time of its own start. A list of more
	// nodes than listNodes may take longer in proportion.
	getLimit, listLimit = 1.0, 30.0
	listNodes           = 100_000
	readyLimit          = 30.0 // seconds until a node that was started again is Ready
)

// verdict is a figure of a rung with its limit.
type verdict struct {
	name, unit      string
	measured, limit float64
	atLeast, must   bool
	operations      int // 0 if it was not measured
}

// verdict appends a verdict to the result, and reports whether it is met.
func (r *run) verdict(g rung, v verdict) bool {
	judged := experiment.Verdict{
		Name: "rung " + g.title() + ": " + v.name, Measured: v.measured, Limit: v.limit, Unit: v.unit, AtLeast: v.atLeast,
		Operations: int64(v.operations),
		// A rung that climbs must only reach a number of nodes.
		Must: v.must && !g.climbs,
	}.Judged()
	r.Result.Verdicts = append(r.Result.Verdicts, judged)
	return judged.Met
}

// judge appends the verdicts of a rung, and reports whether all objectives are met that must be.
func (s *step) judge(o outcome) (holds bool) {
	holds = true
	for _, v := range s.verdicts(o) {
		if met := s.verdict(s.rung, v); v.must {
			holds = holds && met
		}
	}
	return holds
}

// verdicts returns what the rung must reach, and what it aims for.
func (s *step) verdicts(o outcome) (all []verdict) {
	must := func(name, unit string, measured, limit float64, atLeast bool, operations int) {
		all = append(all, verdict{name: name + ", must", unit: unit, measured: measured, limit: limit, atLeast: atLeast, must: true, operations: operations})
	}
	aim := func(name, unit string, measured, limit float64, atLeast bool, operations int) {
		all = append(all, verdict{name: name + ", aim", unit: unit, measured: measured, limit: limit, atLeast: atLeast, operations: operations})
	}
	nodes := s.rung.nodes
	arrived, heartbeats := s.arrivedShare(o.held), 0
	if s.due(o.arrivalSeconds) > 0 {
		heartbeats = int(o.arrived)
	}
	must("held", "s", o.seconds, s.options.Hold.D.Seconds(), true, 1)
	must("heartbeats that arrived ÷ due", "×", arrived, mustArrive, true, heartbeats)
	aim("heartbeats that arrived ÷ due", "×", arrived, aimArrive, true, heartbeats)
	must("Leases renewed in time, least sample", "Leases", float64(o.leastRenewed), mustInTime*float64(nodes), true, o.samples)
	aim("Leases renewed in time, least sample", "Leases", float64(o.leastRenewed), float64(nodes), true, o.samples)
	must("nodes Ready at the end", "nodes", float64(o.readiness.ready), float64(nodes), true, o.readiness.nodes)
	must("nodes that became NotReady", "nodes", float64(o.becameNotReady()), 0, false, o.readiness.nodes)
	if s.rung.aimInterval > 0 {
		aim("interval of heartbeats", "s", s.interval.Seconds(), s.rung.aimInterval.Seconds(), false, heartbeats)
	}
	s.userVerdicts(o, must, aim)
	return all
}

// userVerdicts adds the verdicts about what users see.
func (s *step) userVerdicts(o outcome, must, aim func(name, unit string, measured, limit float64, atLeast bool, operations int)) {
	k, w, f, nodes := o.kubectl, o.workload, o.failures, float64(s.rung.nodes)
	must("kubectl get node that answered", "calls", float64(len(k.get)), float64(s.options.Kubectl), true, len(k.get)+k.failed)
	aim("kubectl get node, slowest", "s", most(k.get), getLimit, false, len(k.get))
	listed := 0
	if k.isListed {
		listed = 1
	}
	aim("kubectl get nodes, nodes printed", "nodes", float64(k.listed), nodes, true, listed)
	aim("kubectl get nodes", "s", k.list, listLimit*max(1, nodes/listNodes), false, listed)
	if s.hasPods {
		must("pods of the Deployment ready", "pods", float64(w.replicas), float64(s.options.Replicas.N), true, w.replicas)
	}
	if s.hasPods && s.rung.pods > 0 {
		aim("further pods running", "pods", float64(w.pods), float64(s.rung.pods), true, w.pods)
	}
	if s.hasControllers {
		must("stopped nodes that became NotReady", "nodes", float64(len(f.notReady)), float64(f.stopped), true, f.stopped)
		must("stopped nodes that became Ready again", "nodes", float64(len(f.ready)), float64(f.stopped), true, f.stopped)
		expected := s.grace + 2*s.period
		aim("stopped node NotReady, slowest", "s", most(f.notReady), expected.Seconds(), false, len(f.notReady))
		aim("started node Ready, slowest", "s", most(f.ready), readyLimit, false, len(f.ready))
	}
}
