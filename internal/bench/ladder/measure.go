package ladder

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
)

const mebibyte = 1 << 20

// outcome is everything that was measured on the cluster of a rung.
type outcome struct {
	held
	kubectl  kubectlResult
	workload workload
	failures failures
}

// measure runs a rung completely, and keeps its cluster if that is wanted. A rung that climbs keeps only a cluster that
// holds, because another one may follow. holds reports whether everything that the rung must reach was reached. A cluster
// that does not start is no error: the verdicts say so, and the next rung can run.
func (r *run) measure(ctx context.Context, g rung, keep bool) (holds bool, err error) {
	s, err := r.open(ctx, g)
	if err != nil {
		return false, r.didNotStart(ctx, g, err)
	}
	defer func() { err = errors.Join(err, s.close(keep && (holds || !g.climbs))) }()
	var o outcome
	err = s.parts(ctx, &o)
	if o.seconds > 0 {
		s.addHeld(o.held)
	}
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	if err != nil {
		r.Result.Note("Rung %s: %v", g.title(), err)
	}
	s.addUsers(o)
	return s.judge(o), nil
}

// parts measures the parts of a rung, one after the other. If the cluster cannot be held, the others are left out, and
// so is what needs a component that does not run.
func (s *step) parts(ctx context.Context, o *outcome) (err error) {
	if o.held, err = s.hold(ctx, s.options.Hold.D); err != nil {
		return err
	}
	if o.broken != "" {
		return fmt.Errorf("not held any longer: %s", o.broken)
	}
	if o.kubectl, err = s.kubectl(ctx); err != nil {
		return err
	}
	if s.hasPods {
		if err := s.deploy(ctx, &o.workload); err != nil {
			return err
		}
		if err := s.fill(ctx, &o.workload); err != nil {
			return err
		}
	}
	if s.hasControllers {
		o.failures, err = s.fail(ctx)
	}
	return err
}

// didNotStart records that the cluster of a rung did not start. It returns an error only if ctx has ended.
func (r *run) didNotStart(ctx context.Context, g rung, err error) error {
	if ctx.Err() != nil {
		return err
	}
	r.Result.Note("Rung %s did not start: %v", g.title(), err)
	r.tables.limits.Add(g.title(), "the start", "", err.Error())
	r.verdict(g, verdict{name: "held", unit: "s", limit: r.options.Hold.D.Seconds(), atLeast: true, must: true, operations: 1})
	return nil
}

// addHeld appends what was measured while the cluster was held.
func (s *step) addHeld(h held) {
	title := s.rung.title()
	share := func(part, whole float64) float64 { return 100 * part / max(whole, 1e-9) }
	s.tables.holds.Add(title, s.rung.nodes, s.interval.Seconds(), h.seconds, (h.answered+h.failed)/h.seconds, h.answered/h.seconds,
		h.arrived/max(h.arrivalSeconds, 1e-9), 100*s.arrivedShare(h), share(h.served, h.served+h.forwarded),
		millis(h.latency, 0.5), millis(h.latency, 0.99), h.leastRenewed, h.readiness.ready, h.becameNotReady())
	s.addProcesses(h)
	for _, b := range s.bounds(h) {
		s.tables.limits.Add(title, b.name, 100*b.used, b.measured)
	}
}

// addUsers appends what users saw.
func (s *step) addUsers(o outcome) {
	k, w, f := o.kubectl, o.workload, o.failures
	s.tables.users.Add(s.rung.title(), 1000*median(k.get), 1000*most(k.get), k.list, float64(k.listMemory)/mebibyte,
		w.replicas, w.rollout, w.pods, w.perSecond, f.stopped, median(f.notReady), most(f.notReady), median(f.ready), most(f.ready))
}

// addProcesses appends a row for each process.
func (s *step) addProcesses(h held) {
	nodes := float64(s.rung.nodes)
	add := func(role string, cores float64, resident, peak int64) {
		s.tables.processes.Add(s.rung.title(), role, cores, 1e6*cores*h.seconds/max(h.answered, 1), 1e6*cores/nodes,
			float64(resident)/mebibyte, float64(peak)/mebibyte, float64(resident)/nodes)
	}
	cores, resident, peak := 0.0, int64(0), int64(0)
	for _, role := range slices.Sorted(maps.Keys(h.usage.CPU)) {
		add(role, h.usage.Cores(role), h.usage.Resident[role], h.usage.Peak[role])
		cores, resident, peak = cores+h.usage.Cores(role), resident+h.usage.Resident[role], peak+h.usage.Peak[role]
	}
	add("all", cores, resident, peak)
}

// becameNotReady returns how many nodes became NotReady while the cluster was held, by the API or by
// kube-controller-manager, whoever has seen more.
func (h held) becameNotReady() int { return max(h.readiness.changed, int(h.mostNotReady)) }

// millis returns a quantile of a histogram of seconds in milliseconds; 0 if it is empty.
func millis(h experiment.Histogram, q float64) float64 {
	if h.Count() == 0 {
		return 0
	}
	return 1000 * h.Quantile(q)
}
