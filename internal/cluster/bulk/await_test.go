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

func TestMatchCounterCountsRunningPodsOfTheRange(t *testing.T) {
	counter := &matchCounter{matches: PodRunning, wanted: sets.New("a", "b", "c"), matching: sets.New[string](), synced: make(chan struct{})}
	check := func(when string, want int) {
		t.Helper()
		if got, _ := counter.done(); got != want {
			t.Errorf("%s: %d pods of the range are running, want %d", when, got, want)
		}
	}
	check("before the first list", 0)
	transformed, err := counter.transform(pod("b", corev1.PodRunning))
	if err != nil {
		t.Fatal(err)
	}
	steps := []struct {
		when string
		do   func() error
		want int
	}{
		{"after the first list", func() error {
			return counter.Replace([]any{pod("a", corev1.PodPending), transformed, pod("other", corev1.PodRunning)}, "")
		}, 1},
		{"after pod a started", func() error { return counter.Update(pod("a", corev1.PodRunning)) }, 2},
		{"after pod a failed", func() error { return counter.Update(pod("a", corev1.PodFailed)) }, 1},
		{"after pod b was deleted", func() error { return counter.Delete(pod("b", "")) }, 0},
	}
	for _, step := range steps {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		check(step.when, step.want)
	}
}

func TestNumberOfGonePodsIsUnknownBeforeTheFirstList(t *testing.T) {
	counter := &matchCounter{matches: PodRunning, countMissing: true, wanted: sets.New("a", "b"), matching: sets.New[string](), synced: make(chan struct{})}
	if got, known := counter.done(); got != 0 || known {
		t.Errorf("before the first list %d pods are gone, and known is %v", got, known)
	}
	if err := counter.Replace([]any{pod("a", corev1.PodRunning)}, ""); err != nil {
		t.Fatal(err)
	}
	if got, _ := counter.done(); got != 1 {
		t.Errorf("%d pods are gone, want 1", got)
	}
}
