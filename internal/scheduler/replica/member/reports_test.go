package member

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/core"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/holder"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// TestExpiryContinuesAfterError has the API server answer some lookups of overdue reservations with an error.
// The other reservations expire nevertheless.
func TestExpiryContinuesAfterError(t *testing.T) {
	f := schedtest.NewScripted(t, schedtest.NewAPI())
	nodes := f.Sched.Cache.(*cache.Cache)
	nodes.AddNode(klog.Logger{}, schedtest.PlainNode("node", "64"))
	client := fake.NewClientset()
	client.PrependReactor("get", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		name := action.(clienttesting.GetAction).GetName()
		return strings.HasPrefix(name, "failing"), nil, errors.New("the server is overloaded")
	})
	m := &Member{client: client, holder: holder.New(klog.Logger{}, f.Ranker, nodes)}
	for i := range 20 {
		name := fmt.Sprintf("pod-%d", i)
		if i < 5 {
			name = "failing-" + name
		}
		pod := schedtest.PlainPod(name, "1")
		pod.Spec.NodeName = "node"
		r := core.NewReservation(pod, wire.TermKeys{})
		if refused := m.holder.Reserve(t.Context(), "leader", 1, true, &r); refused != "" {
			t.Fatal(refused)
		}
	}
	m.holder.ShortenOld(2, time.Now().Add(-time.Minute))
	m.expireReservations(t.Context())
	if got := m.holder.Counts(); got.Reservations != 5 || got.Expired != 15 {
		t.Errorf("Counts() = %d reservations and %d expired, want 5 and 15", got.Reservations, got.Expired)
	}
}

// TestLateBindsAreAwaited checks which reservations of an earlier leader expire: those of pods that cannot be bound
// to the node any more.
func TestLateBindsAreAwaited(t *testing.T) {
	f := schedtest.NewScripted(t, schedtest.NewAPI())
	nodes := f.Sched.Cache.(*cache.Cache)
	nodes.AddNode(klog.Logger{}, schedtest.PlainNode("node", "64"))
	client := fake.NewClientset()
	m := &Member{client: client, holder: holder.New(klog.Logger{}, f.Ranker, nodes)}
	for name, change := range map[string]func(*v1.Pod){
		"pending":     func(*v1.Pod) {},
		"bound":       func(pod *v1.Pod) { pod.Spec.NodeName = "node" },
		"elsewhere":   func(pod *v1.Pod) { pod.Spec.NodeName = "another" },
		"terminating": func(pod *v1.Pod) { pod.DeletionTimestamp = &metav1.Time{Time: time.Now()} },
		"recreated":   func(pod *v1.Pod) { pod.UID = "another" },
		"deleted":     nil,
	} {
		pod := schedtest.PlainPod(name, "1")
		reserved := pod.DeepCopy()
		reserved.Spec.NodeName = "node"
		r := core.NewReservation(reserved, wire.TermKeys{})
		if refused := m.holder.Reserve(t.Context(), "leader", 1, true, &r); refused != "" {
			t.Fatal(refused)
		}
		if change != nil {
			change(pod)
			if err := client.Tracker().Add(pod); err != nil {
				t.Fatal(err)
			}
		}
	}
	m.holder.ShortenOld(2, time.Now().Add(-time.Minute))
	m.expireReservations(t.Context())
	var left []types.UID
	for _, r := range m.holder.EarlierReservations(2) {
		left = append(left, r.UID)
	}
	slices.Sort(left)
	if want := []types.UID{"bound", "pending"}; !slices.Equal(left, want) {
		t.Errorf("the reservations of %v are left, want those of %v", left, want)
	}
}
