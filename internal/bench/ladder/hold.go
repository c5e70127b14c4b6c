package ladder

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/util/machine"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
)

const (
	// sampleEvery is the time between two looks at the counters.
	sampleEvery = 5 * time.Second
	// lateAfter is the time limit of a heartbeat: a Lease whose last renewal is older than the interval and this has
	// missed one.
	lateAfter = 10 * time.Second
	// jitter is the largest part of the interval that node-sim adds to it.
	jitter = 0.04
	// leastAvailable is the share of the memory that must be available. Below it, the kernel would kill a process soon.
	leastAvailable = 0.03
)

// held is what was measured while a cluster was held.
type held struct {
	counters        // the differences from the start to the end
	usage           experiment.Measured
	seconds         float64 // how long the cluster was held
	arrived         float64 // heartbeats in the store
	arrivalSeconds  float64 // time in which they arrived
	leastRenewed    int     // Leases that were renewed in time, in the sample with the fewest
	samples         int     // of Leases
	mostNotReady    float64 // for kube-controller-manager, at any time
	readiness       readiness
	idle, available float64 // shares of the cores and of the memory; of the memory the least
	// broken says why the cluster was not held for the whole time; "" if it was.
	broken string
}

// hold holds the cluster for a time, and counts heartbeats and nodes that are Ready. It ends earlier if there is no
// memory left.
func (s *step) hold(ctx context.Context, duration time.Duration) (h held, err error) {
	s.mark("held")
	before, err := s.counters(ctx)
	if err != nil {
		return h, err
	}
	state, err := machine.ReadState()
	if err != nil {
		return h, err
	}
	first, err := s.leases.read(ctx, time.Time{})
	if err != nil {
		return h, err
	}
	begun := time.Now()
	window := s.cluster.Sampler.Begin(ctx)
	h.leastRenewed, h.available = first.leases, 1
	last, err := s.watch(ctx, &h, duration)
	if err != nil {
		return h, err
	}
	h.seconds = time.Since(begun).Seconds()
	h.usage = window.End(ctx)
	after, err := s.counters(ctx)
	if err != nil {
		return h, err
	}
	end, err := machine.ReadState()
	if err != nil {
		return h, err
	}
	h.counters, h.idle = after.since(before), end.IdleSince(state)
	h.mostNotReady = max(h.mostNotReady, after.notReady)
	if last.at.After(first.at) {
		h.arrived, h.arrivalSeconds = float64(last.writes-first.writes), last.at.Sub(first.at).Seconds()
	}
	s.mark("end")
	h.readiness, err = countReady(ctx, s.cluster.Client, begun)
	return h, err
}

// watch samples the cluster until the duration is over, or the memory is. It returns the last count of Leases.
func (s *step) watch(ctx context.Context, h *held, duration time.Duration) (last leaseCount, err error) {
	task := s.Display.Task(s.rung.title()+": held", 0)
	begun := time.Now()
	before, at := counters{}, time.Time{}
	for h.samples < s.options.Samples {
		now, err := s.heartbeats(ctx)
		if err == nil {
			err = s.health(ctx, &now)
		}
		// If a page cannot be read, this sample is left out. The counters at the end have everything.
		if looked := time.Now(); err == nil {
			s.show(task, h, before, now, at, looked, begun, duration)
			before, at = now, looked
		}
		if h.broken = s.exhausted(h); h.broken != "" {
			task.Fail(h.broken)
			return last, nil
		}
		if due := begun.Add(duration * time.Duration(h.samples+1) / time.Duration(s.options.Samples)); !time.Now().Before(due) {
			if last, err = s.sample(ctx, h); err != nil {
				task.Fail(err.Error())
				return last, err
			}
			continue
		}
		if err := experiment.Sleep(ctx, min(sampleEvery, time.Until(begun.Add(duration)))); err != nil {
			task.Interrupt()
			return last, err
		}
	}
	task.Done(fmt.Sprintf("%.0f s, %d of %d Leases renewed in time in the worst sample", time.Since(begun).Seconds(), h.leastRenewed, s.rung.nodes))
	return last, nil
}

// sample reads all Leases, and counts those that were renewed in time.
func (s *step) sample(ctx context.Context, h *held) (leaseCount, error) {
	allowed := time.Duration(float64(s.interval)*(1+jitter)) + lateAfter
	count, err := s.leases.read(ctx, time.Now().Add(-allowed))
	if err != nil {
		return count, err
	}
	h.samples++
	h.leastRenewed = min(h.leastRenewed, count.renewed)
	return count, nil
}

// exhausted records the available memory, and returns why the cluster cannot be held any longer; "" if it can.
func (s *step) exhausted(h *held) string {
	state, err := machine.ReadState()
	if err != nil {
		return err.Error()
	}
	h.available = min(h.available, state.AvailableShare())
	if h.available < leastAvailable {
		return fmt.Sprintf("memory: %.1f %% available", 100*h.available)
	}
	return ""
}

// show adds a sample of the counters to the charts and to the display. The first one has no rate.
func (s *step) show(task progress.Task, h *held, before, now counters, at, looked, begun time.Time, duration time.Duration) {
	h.mostNotReady = max(h.mostNotReady, now.notReady)
	if at.IsZero() {
		return
	}
	seconds, d := looked.Sub(at).Seconds(), now.since(before)
	line := func(plot, name, unit string, value float64) {
		s.Result.Line(experiment.Series{Plot: plot + ", " + s.rung.title(), Name: name, X: experiment.Seconds, Unit: unit}, s.seconds(), value)
	}
	line("heartbeats", "answered", "heartbeats/s", d.answered/seconds)
	line("heartbeats", "failed", "heartbeats/s", d.failed/seconds)
	line("NotReady nodes", "for kube-controller-manager", "nodes", now.notReady)
	p99 := 0.0
	if d.latency.Count() > 0 {
		p99 = 1000 * d.latency.Quantile(0.99)
		line("latency of heartbeats", "p99", "ms", p99)
	}
	task.Say(fmt.Sprintf("%.0f of %.0f s, %.0f heartbeats/s, %.0f failed/s, p99 %.0f ms, %.0f nodes NotReady, %.0f %% of the memory available",
		looked.Sub(begun).Seconds(), duration.Seconds(), d.answered/seconds, d.failed/seconds, p99, now.notReady, 100*h.available))
}

// due returns the number of heartbeats that must have arrived in a time: one of each node in each interval with its
// jitter. The part of an interval at the end does not count, because nodes that started together renew together.
func (s *step) due(seconds float64) float64 {
	return float64(s.rung.nodes) * math.Floor(seconds/(s.interval.Seconds()*(1+jitter)))
}

// arrivedShare returns the heartbeats that arrived as a share of those that were due; 0 if none was.
func (s *step) arrivedShare(h held) float64 {
	due := s.due(h.arrivalSeconds)
	if due == 0 {
		return 0
	}
	return h.arrived / due
}
