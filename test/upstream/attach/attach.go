// Package attach puts our search for nodes into the schedulers that Kubernetes' own
// tests make. It is linked into their test binaries and says on standard output, by
// which test2json knows the test, what became of each scheduler.
package attach

import (
	"errors"
	"fmt"
	"os"
	"sort"
	"strings"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/kubernetes/pkg/features"
	upstream "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"

	"github.com/k8s-1m/k8s-1m/internal/scheduler"
)

// Switch is the environment variable that leaves tests to upstream's search if it
// is "0".
const Switch = "K1M_ATTACH"

// Hook returns what is to be called with every scheduler that is made: nothing, if
// upstream's search is asked for.
func Hook() func(*upstream.Scheduler, []config.KubeSchedulerProfile) error {
	if os.Getenv(Switch) == "0" {
		return nil
	}
	// What scheduler.Prepare does, but as a default: a gate that is set keeps tests
	// from going back to the gates of older versions.
	if err := utilfeature.DefaultMutableFeatureGate.OverrideDefault(features.OpportunisticBatching, false); err != nil {
		panic(err)
	}
	return attach
}

func attach(sched *upstream.Scheduler, profiles []config.KubeSchedulerProfile) error {
	err := scheduler.Attach(sched, profiles)
	if errors.Is(err, scheduler.ErrPodGroups) {
		// As dist-scheduler does.
		report("left to upstream: %v", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("attaching: %w", err)
	}
	report("attached")
	go func() {
		<-sched.StopEverything
		report("decided so far: %s", decisions())
	}()
	return nil
}

// report begins a line of its own, whatever was written before.
func report(format string, args ...any) {
	fmt.Printf("\nk1m: "+format+"\n", args...)
}

// decisions says how many nodes were found by what since the process began, and why
// not by the index.
func decisions() string {
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		return err.Error()
	}
	counts := []string{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			switch family.GetName() {
			case "scheduler_node_search_duration_seconds":
				counts = append(counts, fmt.Sprintf("by-%s=%d", metric.GetLabel()[0].GetValue(), metric.GetHistogram().GetSampleCount()))
			case "scheduler_index_fallbacks_total":
				counts = append(counts, fmt.Sprintf("for-%s=%.0f", metric.GetLabel()[0].GetValue(), metric.GetCounter().GetValue()))
			}
		}
	}
	sort.Strings(counts)
	return strings.Join(counts, " ")
}
