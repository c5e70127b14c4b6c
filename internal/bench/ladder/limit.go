package ladder

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
)

const mostProcesses = 4 // that are named with the CPU usage

// bound is something that gives when it is used completely. used is the share that is in use, from 0 to 1; for a
// latency it is that of its time limit.
type bound struct {
	name     string
	used     float64
	measured string
}

// bounds returns what limits the cluster, the one that is used most first.
func (s *step) bounds(h held) []bound {
	cores, processes := s.Result.Machine.Cores, float64(max(s.simulators, 1))
	own := 0.0
	for role := range h.usage.CPU {
		own += h.usage.Cores(role)
	}
	all := []bound{
		{"CPU of the machine", 1 - h.idle, fmt.Sprintf("%.2f of %d cores, %.2f of them by this cluster: %s", (1-h.idle)*float64(cores), cores, own, busiest(h.usage))},
		{"memory of the machine", 1 - h.available, "largest processes: " + largest(h.usage)},
		{"the one thread of a node-sim", h.usage.Cores(component.NodeSim) / processes, fmt.Sprintf("%.2f cores in %.0f processes", h.usage.Cores(component.NodeSim), processes)},
	}
	if h.passes > 0 {
		pass := h.passSeconds / h.passes
		all = append(all, bound{"kube-controller-manager's pass over all nodes", pass / s.period.Seconds(), fmt.Sprintf("%.2f s, every %s", pass, s.period)})
	}
	if h.latency.Count() > 0 {
		p99 := h.latency.Quantile(0.99)
		all = append(all, bound{"p99 of heartbeats", p99 / lateAfter.Seconds(), fmt.Sprintf("%.3f s of %s", p99, lateAfter)})
	}
	slices.SortStableFunc(all, func(a, b bound) int { return cmp.Compare(b.used, a.used) })
	return all
}

// busiest names the processes that used most CPU time.
func busiest(m experiment.Measured) string {
	return top(m.CPU, func(role string) string { return fmt.Sprintf("%s %.2f", role, m.Cores(role)) })
}

// largest names the processes with most memory.
func largest(m experiment.Measured) string {
	return top(m.Peak, func(role string) string { return fmt.Sprintf("%s %d MiB", role, m.Peak[role]/mebibyte) })
}

// top describes the roles with the largest values.
func top[V cmp.Ordered](values map[string]V, describe func(role string) string) string {
	roles := slices.SortedFunc(maps.Keys(values), func(a, b string) int { return cmp.Compare(values[b], values[a]) })
	var parts []string
	for _, role := range roles[:min(len(roles), mostProcesses)] {
		parts = append(parts, describe(role))
	}
	return strings.Join(parts, ", ")
}
