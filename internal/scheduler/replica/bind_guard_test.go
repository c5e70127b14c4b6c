package replica

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/intake"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// TestThrottledBindIsCheckedAgain releases the reservations of pods while their binds wait for the rate limiter of
// the client. These binds are not sent.
func TestThrottledBindIsCheckedAgain(t *testing.T) {
	var sent atomic.Int64
	first := make(chan struct{}, 3)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		sent.Add(1)
		first <- struct{}{}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess})
	}))
	defer server.Close()
	g := newGroup(t, 2, schedtest.PlainNode("node", "4"))
	// Early pods are not bound before they are stored, so they keep their reservations.
	for i := range 3 {
		g.in.Take(schedtest.PlainPod(fmt.Sprintf("pod-%d", i), "1"))
	}
	g.awaitReservations(3, 3)
	guard := &BindGuard{}
	config := &rest.Config{Host: server.URL, QPS: 0.5, Burst: 1}
	config.Wrap(guard.Wrap)
	client, err := kubernetes.NewForConfig(config)
	g.Must(err)
	bind := func(i int) error {
		name := fmt.Sprintf("pod-%d", i)
		binding := &v1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Target: v1.ObjectReference{Kind: "Node", Name: "node"}}
		return client.CoreV1().Pods("default").Bind(t.Context(), binding, metav1.CreateOptions{})
	}
	guard.SetCheck(g.replicas[0].MayBind)
	g.Must(bind(0))
	<-first
	errs := make(chan error, 2)
	for i := range 2 {
		go func() { errs <- bind(i + 1) }()
	}
	g.clock.Step(intake.EarlyExpiry + intake.SweepInterval)
	g.awaitReservations(0, 0)
	for range 2 {
		if err := <-errs; err == nil {
			t.Error("a bind succeeded after its reservation was released, want an error")
		}
	}
	if n := sent.Load(); n != 1 {
		t.Errorf("%d binds were sent, want 1", n)
	}
}
