package replica

import (
	"errors"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// TestUnansweredBindKeepsItsRoom has the connection of a bind end without an answer. The API server may have executed the
// bind, so another pod must not take the room, and the pod is bound to the same node again.
func TestUnansweredBindKeepsItsRoom(t *testing.T) {
	g, _ := newGroupWithRemoteNode(t, 3)
	r := g.replicas[0]
	var attempted, secondBound atomic.Bool
	r.onAttempt(func(pod *v1.Pod, err error) {
		if pod.Name == "second" && err != nil {
			attempted.Store(true)
		}
	})
	g.API.OnBind = func(pod *v1.Pod, _ string) (bool, error) {
		switch {
		case pod.Name == "second":
			secondBound.Store(true)
		case !attempted.Load():
			g.API.Put(schedtest.PlainPod("second", "4"))
			return false, errors.New("connection reset by peer")
		}
		return true, nil
	}
	g.API.Put(schedtest.PlainPod("first", "4"))
	g.AwaitBound("first")
	if !attempted.Load() || secondBound.Load() {
		t.Errorf("the second pod: attempted and refused %t, bound %t; want it refused", attempted.Load(), secondBound.Load())
	}
	g.awaitConsistent()
}

// TestRefusedBindReleasesItsRoom has the API server refuse a bind. Another pod takes the room at once.
func TestRefusedBindReleasesItsRoom(t *testing.T) {
	g, _ := newGroupWithRemoteNode(t, 3)
	g.API.OnBind = func(pod *v1.Pod, _ string) (bool, error) {
		if pod.Name == "first" {
			g.API.Put(schedtest.PlainPod("second", "4"))
			return false, apierrors.NewForbidden(v1.Resource("pods"), "first", errors.New("a webhook says no"))
		}
		return true, nil
	}
	g.API.Put(schedtest.PlainPod("first", "4"))
	g.awaitBoundSoon("second")
}
