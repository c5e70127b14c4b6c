package bulk

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
)

// testJob returns a job over objects with the name prefix "x-".
func testJob(count int, do func(name string, number int) error) Job {
	return Job{
		Range:       Range{Prefix: "x-", Count: count},
		Concurrency: 4,
		AlreadyDone: apierrors.IsAlreadyExists,
		Progress:    func(int) {},
		Do:          func(_ context.Context, name string, number, _ int) error { return do(name, number) },
	}
}

func TestRunHandlesEachObjectOnceAndCountsExistingOnes(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]int{}
	job := testJob(100, func(name string, number int) error {
		mu.Lock()
		defer mu.Unlock()
		seen[name]++
		if number == 99 {
			return apierrors.NewAlreadyExists(schema.GroupResource{}, name)
		}
		return nil
	})
	job.Skip = sets.New("x-000000", "x-000001")
	summary, err := Run(t.Context(), job)
	if err != nil || summary.Done != 97 || summary.Skipped != 3 || summary.Failed != 0 || len(summary.Errors) != 0 {
		t.Errorf("Run() = %+v, %v, want 97 objects done and 3 skipped", summary, err)
	}
	if len(seen) != 98 || seen["x-000000"] != 0 || seen["x-000002"] != 1 {
		t.Errorf("Run() handled %v, want each of 98 objects once", seen)
	}
}

func TestRunRetriesTransientErrors(t *testing.T) {
	var mu sync.Mutex
	attempts := map[string]int{}
	summary, err := Run(t.Context(), testJob(4, func(name string, number int) error {
		mu.Lock()
		defer mu.Unlock()
		attempts[name]++
		if attempts[name] > 1 {
			return nil
		}
		return []error{
			apierrors.NewTooManyRequests("busy", 0),
			fmt.Errorf("dial: %w", syscall.ECONNREFUSED),
			context.DeadlineExceeded,
			apierrors.NewInternalError(errors.New("x")),
		}[number]
	}))
	if err != nil || summary.Done != 4 || summary.Failed != 0 {
		t.Errorf("Run() = %+v, %v, want 4 objects done and none failed", summary, err)
	}
	for _, kind := range []string{"429 too many requests", "connection refused", "timeout", "InternalError"} {
		if summary.Errors[kind] != 1 {
			t.Errorf("errors of kind %q = %d, want 1", kind, summary.Errors[kind])
		}
	}
}

func TestRunGivesUpIfEverythingFails(t *testing.T) {
	summary, err := Run(t.Context(), testJob(100_000, func(name string, _ int) error {
		return apierrors.NewBadRequest("never")
	}))
	if !errors.Is(err, ErrIncomplete) || summary.Failed < maxFailures || summary.Failed > maxFailures+4 || !summary.Interrupted {
		t.Errorf("Run() = %+v, %v, want it interrupted after %d failures, and %v", summary, err, maxFailures, ErrIncomplete)
	}
}

func TestRunReportsFailedObjects(t *testing.T) {
	summary, err := Run(t.Context(), testJob(10, func(name string, number int) error {
		if number == 5 {
			return apierrors.NewBadRequest("not this one")
		}
		return nil
	}))
	if err != nil && strings.Contains(err.Error(), "to continue") {
		t.Errorf("Run() = error %v, want no advice to repeat the command, which would fail again", err)
	}
	if !errors.Is(err, ErrIncomplete) || summary.Done != 9 || summary.Failed != 1 || summary.FirstFailure != "not this one" {
		t.Errorf("Run() = %+v, %v, want 9 objects done, 1 failed, and %v", summary, err, ErrIncomplete)
	}
}

func TestInterruptedRunReturnsSummary(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	job := testJob(1000, func(_ string, number int) error {
		switch {
		case number == 50:
			interrupt()
		case number > 50:
			<-ctx.Done() // the goroutine with number 50 may be the slowest
		}
		return ctx.Err()
	})
	summary, err := Run(ctx, job)
	if !errors.Is(err, context.Canceled) || !summary.Interrupted || summary.Done == 0 || summary.Done > 50 || summary.Failed != 0 {
		t.Errorf("Run() = %+v, %v, want 1 to 50 objects done, none failed, and %v", summary, err, context.Canceled)
	}
}

func TestNumberIsInverseOfName(t *testing.T) {
	names := Range{Prefix: "x-", First: 40}
	if number, ok := names.Number(names.Name(2)); number != 42 || !ok {
		t.Errorf("Number(Name(2)) = %d, %v, want 42, true", number, ok)
	}
	for _, other := range []string{"y-000001", "x-", "x-a", "x--1"} {
		if _, ok := names.Number(other); ok {
			t.Errorf("Number(%q) = true, want false", other)
		}
	}
}

func TestNodesFollowShapeAndTemplate(t *testing.T) {
	shape := DefaultNodeShape()
	shape.Labels = map[string]string{"a": "b"}
	nodes, err := NewNodes(shape)
	if err != nil {
		t.Fatal(err)
	}
	first, fifth := nodes.Make("node-000000", 0), nodes.Make("node-000004", 4)
	if first.Labels[corev1.LabelTopologyZone] != "zone-0" || fifth.Labels[corev1.LabelTopologyZone] != "zone-1" ||
		fifth.Labels[corev1.LabelHostname] != "node-000004" || fifth.Labels["a"] != "b" {
		t.Errorf("labels = %v and %v, want zone-0 and zone-1, the host name and a=b", first.Labels, fifth.Labels)
	}
	if first.Status.Allocatable.Cpu().String() != "32" || first.Status.Capacity.Pods().Value() != 110 {
		t.Errorf("allocatable = %v, capacity = %v, want 32 cores and 110 pods", first.Status.Allocatable, first.Status.Capacity)
	}
}

func TestPodsOnNodes(t *testing.T) {
	pods, err := NewPods(DefaultPodShape())
	if err != nil {
		t.Fatal(err)
	}
	bound := pods.On(Range{Prefix: NodePrefix, First: 5, Count: 3})
	for number, want := range []string{"node-000005", "node-000006", "node-000007", "node-000005"} {
		if got := bound.MakeNumber("default", "pod", number).Spec.NodeName; got != want {
			t.Errorf("the pod %d is on %q, want %q", number, got, want)
		}
	}
	if node := pods.MakeNumber("default", "pod", 1).Spec.NodeName; node != "" {
		t.Errorf("a pod without nodes is on %q", node)
	}
}
