package replica

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/intake"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// bindServer is an API server that accepts all binds, and counts them.
type bindServer struct {
	*httptest.Server
	binds atomic.Int64
}

// newBindServer starts a server that calls a function for each bind.
func newBindServer(t *testing.T, onBind func()) *bindServer {
	s := &bindServer{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s.binds.Add(1)
		onBind()
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess})
	}))
	t.Cleanup(s.Close)
	return s
}

// binder returns a function that binds a pod through a guard.
func (s *bindServer) binder(t *testing.T, guard *BindGuard) func(pod string) error {
	config := &rest.Config{Host: s.URL, QPS: 0.5, Burst: 1, Dial: guard.Dial}
	config.Wrap(guard.Wrap)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return func(pod string) error {
		binding := &v1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: pod}, Target: v1.ObjectReference{Kind: "Node", Name: "node"}}
		return client.CoreV1().Pods("default").Bind(t.Context(), binding, metav1.CreateOptions{})
	}
}

// TestThrottledBindIsCheckedAgain releases the reservations of pods while their binds wait for the rate limiter of
// the client. These binds are not sent.
func TestThrottledBindIsCheckedAgain(t *testing.T) {
	first := make(chan struct{}, 3)
	server := newBindServer(t, func() { first <- struct{}{} })
	g := newGroup(t, 2, schedtest.PlainNode("node", "4"))
	// Early pods are not bound before they are stored, so they keep their reservations.
	for i := range 3 {
		g.in.Take(schedtest.PlainPod(fmt.Sprintf("pod-%d", i), "1"))
	}
	g.awaitReservations(3, 3)
	guard := &BindGuard{}
	bind := server.binder(t, guard)
	guard.SetChecks(g.replicas[0].MayBind, g.replicas[0].MayWrite)
	g.Must(bind("pod-0"))
	<-first
	errs := make(chan error, 2)
	for i := range 2 {
		go func() { errs <- bind(fmt.Sprintf("pod-%d", i+1)) }()
	}
	g.clock.Step(intake.EarlyExpiry + intake.SweepInterval)
	g.awaitReservations(0, 0)
	for range 2 {
		if err := <-errs; err == nil {
			t.Error("a bind succeeded after its reservation was released, want an error")
		}
	}
	if n := server.binds.Load(); n != 1 {
		t.Errorf("%d binds were sent, want 1", n)
	}
}

// TestNoBindAfterTheTenure has the tenure of a leader end, as while its process is suspended. Its own replica owns
// the node and keeps renewing the reservation, because it does not know the next leader yet. No bind is sent,
// also not one that has passed the check before.
func TestNoBindAfterTheTenure(t *testing.T) {
	const renewDeadline = time.Minute
	tenure := membership.NewTenure(renewDeadline)
	end := func() { tenure.Renewed(time.Now().Add(-renewDeadline)) }
	g := startReplicasWith(t, func(o *Options) { o.Tenure = tenure }, make([]bool, 1), schedtest.PlainNode("node", "4"))
	g.lead(0)
	leader := g.replicas[0]
	// An early pod is not bound before it is stored, so it keeps its reservation.
	g.in.Take(schedtest.PlainPod("pod", "1"))
	g.awaitReservations(1, 1)
	pod := toolscache.ObjectName{Namespace: "default", Name: "pod"}
	if err := leader.MayBind(pod); err == nil {
		t.Error("MayBind() before the election = nil, want an error")
	}
	tenure.Renewed(time.Now())
	g.Eventually("the pod may be bound", func() error { return leader.MayBind(pod) })
	end()
	if err := leader.MayBind(pod); err == nil || !strings.Contains(err.Error(), "another replica may lead") {
		t.Errorf("MayBind() after the tenure = %v, want an error", err)
	}

	server, guard := newBindServer(t, func() {}), &BindGuard{SendTimeout: time.Second}
	bind := server.binder(t, guard)
	tenure.Renewed(time.Now())
	guard.SetChecks(leader.MayBind, leader.MayWrite)
	g.Must(bind("pod"))
	guard.SetChecks(func(pod toolscache.ObjectName) error {
		defer end()
		return leader.MayBind(pod)
	}, leader.MayWrite)
	if err := bind("pod"); err == nil || server.binds.Load() != 1 {
		t.Errorf("bind that the end of the tenure overtook = %v, %d binds were sent; want an error and 1 bind", err, server.binds.Load())
	}
}
