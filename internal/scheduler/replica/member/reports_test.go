package member

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
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
		r := holder.NewReservation(pod, wire.TermKeys{})
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
