// Package attach attaches the index to the schedulers that Kubernetes' own tests create. It is
// linked into their test binaries. For each scheduler it reports on standard output, so that
// test2json assigns the line to a test.
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

// Switch is the environment variable that turns the index off if it is "0".
const Switch = "K1M_ATTACH"

// Hook returns the function to call with every new scheduler; nil if the index is off.
func Hook() func(*kubescheduler.Scheduler, []config.KubeSchedulerProfile) error {
	if os.Getenv(Switch) == "0" {
		return nil
	}
	// Like attach.Prepare, but changes the default only: tests cannot emulate older versions
	// after the gate was set explicitly.
	if err := utilfeature.DefaultMutableFeatureGate.OverrideDefault(features.OpportunisticBatching, false); err != nil {
		panic(err)
	}
	return attachTo
}

// searched counts full scans by upstream, decided all decisions, since the process started.
var searched, decided atomic.Int64

func attachTo(sched *kubescheduler.Scheduler, profiles []config.KubeSchedulerProfile) error {
	plain := sched.SchedulePod
	sched.SchedulePod = counted(plain, &searched)
	err := attach.Attach(sched, profiles)
	if errors.Is(err, attach.ErrPodGroups) {
		// dist-scheduler also runs without an index then.
		sched.SchedulePod = plain
		report("left to upstream: %v", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("attaching: %w", err)
	}
	sched.SchedulePod = counted(sched.SchedulePod, &decided)
	report("attached")
	go func() {
		<-sched.StopEverything
		// searched is read first, so that the difference cannot be negative.
		searches := searched.Load()
		report("decided so far: by-index=%d by-search=%d%s", decided.Load()-searches, searches, reasons())
	}()
	return nil
}

// search is the type of Scheduler.SchedulePod.
type search = func(context.Context, framework.Framework, fwk.CycleState, *framework.QueuedPodInfo) (kubescheduler.ScheduleResult, error)

// counted returns a search that counts its calls.
func counted(found search, count *atomic.Int64) search {
	return func(ctx context.Context, fw framework.Framework, state fwk.CycleState, pod *framework.QueuedPodInfo) (kubescheduler.ScheduleResult, error) {
		count.Add(1)
		return found(ctx, fw, state, pod)
	}
}

// report prints a line; it starts a new one, as a test may have printed half a line.
func report(format string, args ...any) {
	fmt.Printf("\nk1m: "+format+"\n", args...)
}

// reasons returns the number of fallbacks by reason. It is empty if the test has reset the
// metrics.
func reasons() string {
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
