// Package attach attaches dist-scheduler's node search to the schedulers that Kubernetes' own tests
// create. It is linked into their test binaries. It prints a report for each scheduler to standard
// output; test2json assigns these lines to the tests.
package attach

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/metrics/legacyregistry"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/features"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/attach"
)

// Switch is the environment variable that disables dist-scheduler's node search if it is "0".
const Switch = "K1M_ATTACH"

// Hook returns the function to call with every new scheduler, or nil if the node search is disabled.
func Hook() func(*kubescheduler.Scheduler, []config.KubeSchedulerProfile) error {
	if os.Getenv(Switch) == "0" {
		return nil
	}
	// Hook does not call attach.Prepare, because Prepare sets this feature gate explicitly, and tests that
	// emulate older versions fail with an explicit value. Hook changes only the default.
	if err := utilfeature.DefaultMutableFeatureGate.OverrideDefault(features.OpportunisticBatching, false); err != nil {
		panic(err)
	}
	return attachTo
}

// fullScans is the number of decisions by upstream's full scan since the process started, decisions
// the number of all decisions.
var fullScans, decisions atomic.Int64

func attachTo(sched *kubescheduler.Scheduler, profiles []config.KubeSchedulerProfile) error {
	upstream := sched.SchedulePod
	sched.SchedulePod = withCount(upstream, &fullScans)
	err := attach.Attach(sched, profiles)
	if errors.Is(err, attach.ErrPodGroups) || errors.Is(err, attach.ErrResizePreemption) {
		// In this case dist-scheduler uses upstream's search as well.
		sched.SchedulePod = upstream
		report("left to upstream: %v", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("attaching dist-scheduler's node search: %w", err)
	}
	sched.SchedulePod = withCount(sched.SchedulePod, &decisions)
	report("attached")
	go func() {
		<-sched.StopEverything
		// fullScans is read first, so that the difference cannot be negative.
		scans := fullScans.Load()
		report("decided so far: by-index=%d by-full-scan=%d%s", decisions.Load()-scans, scans, fallbackReasons())
	}()
	return nil
}

// search is the type of Scheduler.SchedulePod.
type search = func(context.Context, framework.Framework, fwk.CycleState, *framework.QueuedPodInfo) (kubescheduler.ScheduleResult, error)

// withCount returns a search that increments count and calls the given search.
func withCount(inner search, count *atomic.Int64) search {
	return func(ctx context.Context, fw framework.Framework, state fwk.CycleState, pod *framework.QueuedPodInfo) (kubescheduler.ScheduleResult, error) {
		count.Add(1)
		return inner(ctx, fw, state, pod)
	}
}

// report prints a line. It starts with a newline, because a test may have printed an incomplete line.
func report(format string, args ...any) {
	fmt.Printf("\nk1m: "+format+"\n", args...)
}

// fallbackReasons returns the number of fallbacks by reason. The result is empty if the test has reset
// the metrics.
func fallbackReasons() string {
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		return " " + err.Error()
	}
	text := ""
	for _, family := range families {
		if family.GetName() != "scheduler_index_fallbacks_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			text += fmt.Sprintf(" for-%s=%.0f", metric.GetLabel()[0].GetValue(), metric.GetCounter().GetValue())
		}
	}
	return text
}
