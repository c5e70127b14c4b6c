package bulk

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

func pod(name string, phase corev1.PodPhase) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.PodStatus{Phase: phase}}
}

func TestMatchCounterCountsRunningPodsOfRange(t *testing.T) {
	counter := &matchCounter{matches: PodRunning}
	counter.begin(Range{Prefix: "pod-", First: 7, Count: 3})
	check := func(event string, want int) {
		t.Helper()
		if got, _ := counter.done(); got != want {
			t.Errorf("done() after %s = %d, want %d", event, got, want)
		}
	}
	check("no event", 0)
	transformed, err := counter.transform(pod("pod-000008", corev1.PodRunning))
	if err != nil {
		t.Fatal(err)
	}
	steps := []struct {
		event string
		send  func() error
		want  int
	}{
		{"the first list", func() error {
			return counter.Replace([]any{pod("pod-000007", corev1.PodPending), transformed, pod("pod-000010", corev1.PodRunning)}, "")
		}, 1},
		{"pod a started", func() error { return counter.Update(pod("pod-000007", corev1.PodRunning)) }, 2},
		{"pod a failed", func() error { return counter.Update(pod("pod-000007", corev1.PodFailed)) }, 1},
		{"pod b was deleted", func() error { return counter.Delete(pod("pod-000008", "")) }, 0},
	}
	for _, step := range steps {
		if err := step.send(); err != nil {
			t.Fatal(err)
		}
		check(step.event, step.want)
	}
}

// A reflector keeps what it receives in such a store until the first list is complete.
func TestReflectorStoresMatches(t *testing.T) {
	counter := &matchCounter{matches: PodRunning}
	transformed, err := counter.transform(pod("pod-000007", corev1.PodRunning))
	if err != nil {
		t.Fatal(err)
	}
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	if err := store.Add(transformed); err != nil {
		t.Fatal(err)
	}
	if keys := store.ListKeys(); len(keys) != 1 || keys[0] != "pod-000007" {
		t.Errorf("the keys are %q", keys)
	}
}

func TestCountOfDeletedPodsIsUnknownBeforeFirstList(t *testing.T) {
	counter := &matchCounter{matches: PodRunning, countMissing: true}
	counter.begin(Range{Prefix: "pod-", First: 7, Count: 2})
	if got, known := counter.done(); got != 0 || known {
		t.Errorf("done() before the first list = %d, known: %v, want 0, known: false", got, known)
	}
	if err := counter.Replace([]any{pod("pod-000007", corev1.PodRunning)}, ""); err != nil {
		t.Fatal(err)
	}
	if got, _ := counter.done(); got != 1 {
		t.Errorf("done() after a list with one of two pods = %d, want 1", got)
	}
}
