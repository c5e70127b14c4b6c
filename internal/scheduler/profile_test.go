package scheduler

import (
	"testing"

	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/utils/ptr"
)

// TestSampleIsAsConfigured: a percentage of a profile, or else that of all profiles;
// without either every node counts.
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
		{ptr.To[int32](30), nil, 200, leastSample},
	} {
		cfg := &config.KubeSchedulerConfiguration{
			PercentageOfNodesToScore: test.all,
			Profiles:                 []config.KubeSchedulerProfile{{PercentageOfNodesToScore: test.own}},
		}
		p := profile{percentage: percentageOf(Profiles(cfg)[0])}
		if have := p.sample(test.nodes); have != test.want {
			t.Errorf("%v and %v of %d nodes: a sample of %d, and should be %d", test.all, test.own, test.nodes, have, test.want)
		}
	}
}
