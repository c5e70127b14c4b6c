package bulk

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

func pod(name string, phase corev1.PodPhase) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.PodStatus{Phase: phase}}
}

func TestMatchCounterCountsRunningPodsOfRange(t *testing.T) {
	counter := &matchCounter{matches: PodRunning, wanted: sets.New("a", "b", "c"), matching: sets.New[string](), synced: make(chan struct{})}
	check := func(event string, want int) {
		t.Helper()
		if got, _ := counter.done(); got != want {
			t.Errorf("done() after %s = %d, want %d", event, got, want)
		}
	}
	check("no event", 0)
	transformed, err := counter.transform(pod("b", corev1.PodRunning))
	if err != nil {
		t.Fatal(err)
	}
	steps := []struct {
		event string
		send  func() error
		want  int
	}{
		{"the first list", func() error {
			return counter.Replace([]any{pod("a", corev1.PodPending), transformed, pod("other", corev1.PodRunning)}, "")
		}, 1},
		{"pod a started", func() error { return counter.Update(pod("a", corev1.PodRunning)) }, 2},
		{"pod a failed", func() error { return counter.Update(pod("a", corev1.PodFailed)) }, 1},
		{"pod b was deleted", func() error { return counter.Delete(pod("b", "")) }, 0},
	}
	for _, step := range steps {
		if err := step.send(); err != nil {
			t.Fatal(err)
		}
		check(step.event, step.want)
	}
}

func TestCountOfDeletedPodsIsUnknownBeforeFirstList(t *testing.T) {
	counter := &matchCounter{matches: PodRunning, countMissing: true, wanted: sets.New("a", "b"), matching: sets.New[string](), synced: make(chan struct{})}
	if got, known := counter.done(); got != 0 || known {
		t.Errorf("done() before the first list = %d, known: %v, want 0, known: false", got, known)
	}
	if err := counter.Replace([]any{pod("a", corev1.PodRunning)}, ""); err != nil {
		t.Fatal(err)
	}
	if got, _ := counter.done(); got != 1 {
		t.Errorf("done() after a list with one of two pods = %d, want 1", got)
	}
}
