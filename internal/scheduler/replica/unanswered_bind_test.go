package replica

import (
	"errors"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// TestUnansweredBindKeepsItsRoom has a bind fail with an error that does not say whether the API server has executed it. So
// another pod must not take the room, and the pod is bound to the same node again, or known to be bound.
func TestUnansweredBindKeepsItsRoom(t *testing.T) {
	for name, failure := range map[string]struct {
		executed bool
		err      error
	}{
		"the connection ends":                    {false, errors.New("connection reset by peer")},
		"conflict":                               {false, apierrors.NewConflict(v1.Resource("pods/binding"), "first", errors.New("Txn call failed"))},
		"conflict with a bind that was executed": {true, apierrors.NewConflict(v1.Resource("pods/binding"), "first", errors.New("already assigned"))},
	} {
		t.Run(name, func(t *testing.T) {
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
					return failure.executed, failure.err
				}
				return true, nil
			}
			g.API.Put(schedtest.PlainPod("first", "4"))
			g.AwaitBound("first")
			g.Eventually("the second pod is attempted", func() error {
				if !attempted.Load() {
					return errors.New("it was not tried yet")
				}
				return nil
			})
			if secondBound.Load() {
				t.Error("the second pod is bound, want it refused")
			}
			g.awaitConsistent()
		})
	}
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
