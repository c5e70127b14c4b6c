package nodesim

import (
	"errors"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

func TestInvalidOptionsAreUsageErrors(t *testing.T) {
	for _, args := range [][]string{
		{"--only", "heartbeat"}, {"--only", ""}, {"--intervals", "100ms"}, {"--intervals", "1100ms"}, {"--timeout", "0s"},
	} {
		o, flags := defaultOptions(), pflag.NewFlagSet("test", pflag.ContinueOnError)
		o.AddFlags(flags)
		if err := flags.Parse(args); err != nil {
			t.Fatal(err)
		}
		if err := o.Validate(); !errors.Is(err, usage.Err) {
			t.Errorf("%q gives %v, want a usage error", args, err)
		}
	}
	if err := defaultOptions().Validate(); err != nil {
		t.Error(err)
	}
}

// The settings of each cluster are valid, and only those of node-sim with many nodes have a gateway.
func TestSettingsOfContenders(t *testing.T) {
	for _, c := range contenders {
		for _, s := range []clusterdir.Settings{c.settings(10), c.heartbeatSettings(10, 2500*time.Millisecond)} {
			s.Complete()
			if err := s.Validate(); err != nil {
				t.Errorf("%s: %v", c, err)
			}
		}
		s := c.heartbeatSettings(10, 2500*time.Millisecond)
		if c == kwok {
			if s.Profile != clusterdir.ProfileNone || len(s.NodeSimArgs) > 0 {
				t.Errorf("the cluster of kwok has %q and %v", s.Profile, s.NodeSimArgs)
			}
			continue
		}
		if s.Profile != gatewayProfile || len(s.NodeSimArgs) != 1 || s.NodeSimArgs[0] != "node-lease-duration-seconds=10" {
			t.Errorf("the cluster of %s has the profile %q and %v", c, s.Profile, s.NodeSimArgs)
		}
	}
}

func TestCostOfAHeartbeat(t *testing.T) {
	cost := heartbeatCost{sent: 20_000, seconds: 10, cores: 0.03, memory: 40 << 20, nodes: 20_000}
	if got := cost.perHeartbeat(); got < 14.99 || got > 15.01 {
		t.Errorf("%v µs for a heartbeat, want 15", got)
	}
	if got := cost.perNode(); got < 2.04 || got > 2.05 {
		t.Errorf("%v KiB for a node, want 2.048", got)
	}
}

// A run fails if a limit is missed, or if nothing was measured.
func TestVerdictsOnHeartbeats(t *testing.T) {
	for _, c := range []struct {
		cost heartbeatCost
		met  bool
	}{
		{heartbeatCost{sent: 1000, seconds: 10, cores: 0.001, memory: 1 << 20, nodes: 1000}, true},
		{heartbeatCost{sent: 1000, seconds: 10, cores: 0.01, memory: 1 << 20, nodes: 1000}, false},
		{heartbeatCost{sent: 1000, seconds: 10, cores: 0.001, memory: 3 << 20, nodes: 1000}, false},
		{heartbeatCost{seconds: 10, memory: 1 << 20, nodes: 1000}, false},
	} {
		b := &bench{Run: &experiment.Run{Result: &experiment.Result{}, Scale: experiment.Scale{Factor: 1}}}
		b.judgeHeartbeats(contenders[0], time.Second, c.cost)
		met := true
		for _, v := range b.Result.Verdicts {
			met = met && (v.Met || !v.Must)
		}
		if len(b.Result.Verdicts) != 4 || met != c.met {
			t.Errorf("%+v: met %v, want %v: %v", c.cost, met, c.met, b.Result.Verdicts)
		}
	}
}

func TestRenewalsOfKwok(t *testing.T) {
	calls := []experiment.Call{
		{Verb: "PUT", Resource: "leases", Count: 7}, {Verb: "GET", Resource: "leases", Count: 5}, {Verb: "PUT", Resource: "nodes", Count: 3},
	}
	if got := renewals(calls); got != 7 {
		t.Errorf("%v renewals, want 7", got)
	}
}
