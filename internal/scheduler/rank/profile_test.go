package rank_test

import (
	"fmt"
	"testing"

	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/utils/ptr"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/attach"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
)

// TestPercentageOfProfileTakesPrecedence checks that percentageOfNodesToScore of a profile takes
// precedence over that of the configuration, and that all nodes are scored without either.
func TestPercentageOfProfileTakesPrecedence(t *testing.T) {
	for _, test := range []struct {
		configuration, profile *int32
		nodes                  int
		want                   int
	}{
		{nil, nil, 10_000, 0},
		{ptr.To[int32](0), nil, 10_000, 0},
		{ptr.To[int32](100), nil, 10_000, 0},
		{ptr.To[int32](30), nil, 10_000, 3000},
		{ptr.To[int32](30), ptr.To[int32](5), 10_000, 500},
		{ptr.To[int32](30), ptr.To[int32](100), 10_000, 0},
		{ptr.To[int32](30), nil, 200, rank.LeastSample},
	} {
		cfg := &config.KubeSchedulerConfiguration{
			PercentageOfNodesToScore: test.configuration,
			Profiles:                 []config.KubeSchedulerProfile{{PercentageOfNodesToScore: test.profile}},
		}
		if got := rank.SampleOf(attach.Profiles(cfg)[0], test.nodes); got != test.want {
			t.Errorf("SampleOf() with percentage %s in the configuration and %s in the profile, %d nodes = %d, want %d",
				percentText(test.configuration), percentText(test.profile), test.nodes, got, test.want)
		}
	}
}

func percentText(percentage *int32) string {
	if percentage == nil {
		return "unset"
	}
	return fmt.Sprint(*percentage)
}
