package replica

import (
	"errors"
	"testing"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/kubernetes/pkg/features"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/attach"
)

// TestResizePreemptionIsRefused enables the feature gate with which upstream schedules running pods.
func TestResizePreemptionIsRefused(t *testing.T) {
	if err := checkShareable(&kubescheduler.Scheduler{}, nil); err != nil {
		t.Fatal(err)
	}
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.InPlacePodVerticalScalingSchedulerPreemption, true)
	if err := checkShareable(&kubescheduler.Scheduler{}, nil); !errors.Is(err, attach.ErrResizePreemption) {
		t.Errorf("checkShareable() of replicas = %v, want %v", err, attach.ErrResizePreemption)
	}
	if _, err := attach.New(&kubescheduler.Scheduler{}, nil); !errors.Is(err, attach.ErrResizePreemption) {
		t.Errorf("New() of an index = %v, want %v", err, attach.ErrResizePreemption)
	}
}
