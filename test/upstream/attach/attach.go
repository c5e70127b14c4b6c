// Package attach puts our search for nodes into the schedulers that Kubernetes' own
// tests make. It is linked into their test binaries and says on standard output, by
// which test2json knows the test, what became of each scheduler.
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
	upstream "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/attach"
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
	// What attach.Prepare does, but as a default: a gate that is set keeps tests
	// from going back to the gates of older versions.
	if err := utilfeature.DefaultMutableFeatureGate.OverrideDefault(features.OpportunisticBatching, false); err != nil {
		panic(err)
	}
	return attachTo
}

// searched and decided count searches by upstream and decisions by either, since
// the process began.
var searched, decided atomic.Int64

func attachTo(sched *upstream.Scheduler, profiles []config.KubeSchedulerProfile) error {
	plain := sched.SchedulePod
	sched.SchedulePod = counted(plain, &searched)
	err := attach.Attach(sched, profiles)
	if errors.Is(err, attach.ErrPodGroups) {
		// As dist-scheduler does.
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
		// Searches first: the difference shall not be too small.
		searches := searched.Load()
		report("decided so far: by-index=%d by-search=%d%s", decided.Load()-searches, searches, reasons())
	}()
	return nil
}

type search = func(context.Context, framework.Framework, fwk.CycleState, *framework.QueuedPodInfo) (upstream.ScheduleResult, error)

// counted is a search that counts how often it is used.
func counted(found search, count *atomic.Int64) search {
	return func(ctx context.Context, fw framework.Framework, state fwk.CycleState, pod *framework.QueuedPodInfo) (upstream.ScheduleResult, error) {
		count.Add(1)
		return found(ctx, fw, state, pod)
	}
}

// report begins a line of its own, whatever was written before.
func report(format string, args ...any) {
	fmt.Printf("\nk1m: "+format+"\n", args...)
}

// reasons says why it was not the index that decided, unless the test has reset the
// metrics by now.
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
