package rank_test

import (
	"testing"

	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/utils/ptr"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/attach"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
)

// TestSampleIsAsConfigured checks that a percentage of a profile precedes that of the
// configuration, and that all nodes count without either.
func TestSampleIsAsConfigured(t *testing.T) {
	for _, test := range []struct {
		all, own *int32
		nodes    int
		want     int
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
			PercentageOfNodesToScore: test.all,
			Profiles:                 []config.KubeSchedulerProfile{{PercentageOfNodesToScore: test.own}},
		}
		if have := rank.SampleOf(attach.Profiles(cfg)[0], test.nodes); have != test.want {
			t.Errorf("%v and %v of %d nodes: a sample of %d, and should be %d", test.all, test.own, test.nodes, have, test.want)
		}
	}
}
