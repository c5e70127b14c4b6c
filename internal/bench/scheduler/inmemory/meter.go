package inmemory

import (
	"maps"
	"syscall"
	"time"

	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/k8s-1m/k8s-1m/internal/util/process"
)

// meter is the resource usage of this process at a time.
type meter struct {
	at      time.Time
	cpu     time.Duration
	peakRSS int64 // bytes
}

func readMeter() meter {
	var usage syscall.Rusage
	// Getrusage fails only if an argument is invalid.
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return meter{
		at:      time.Now(),
		cpu:     process.OwnCPUTime(),
		peakRSS: usage.Maxrss << 10,
	}
}

// fallbacks returns the number of pods so far for which the index could not be used, by reason.
func fallbacks() map[string]int {
	counts := map[string]int{}
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		return counts
	}
	for _, family := range families {
		if family.GetName() != "scheduler_index_fallbacks_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			counts[metric.GetLabel()[0].GetValue()] = int(metric.GetCounter().GetValue())
		}
	}
	return counts
}

// since returns the increase of each count, without counts that did not increase.
func since(before, after map[string]int) map[string]int {
	increase := maps.Clone(after)
	for reason, count := range before {
		if increase[reason] -= count; increase[reason] == 0 {
			delete(increase, reason)
		}
	}
	return increase
}
