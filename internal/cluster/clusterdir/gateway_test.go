package clusterdir

import (
	"errors"
	"slices"
	"testing"

	"github.com/k8s-1m/k8s-1m/internal/util/atomicfile"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

func TestGatewayFlagSelectsGateways(t *testing.T) {
	for _, c := range []struct {
		args []string
		want []string
	}{
		{nil, nil},
		{[]string{"--apiservers", "3"}, nil},
		{[]string{"--gateway"}, []string{"kube-gateway"}},
		{[]string{"--gateway=false"}, nil},
		{[]string{"--gateway", "--apiservers", "3", "--gateways", "2"}, []string{"kube-gateway", "kube-gateway-1"}},
	} {
		s := overlay(t, DefaultSettings(), c.args...)
		s.Complete()
		if err := s.Validate(); err != nil || !slices.Equal(s.GatewayNames(), c.want) || s.Gateway == nil {
			t.Errorf("GatewayNames() with %q = %q, Validate() = %v, want %q, nil", c.args, s.GatewayNames(), err, c.want)
		}
		for _, name := range s.GatewayNames() {
			if ports := s.PortNames(); !slices.Contains(ports, name) || !slices.Contains(ports, GatewayMetricsPort(name)) {
				t.Errorf("PortNames() with %q = %q, want the ports of %s", c.args, ports, name)
			}
		}
	}
}

func TestInvalidGatewaySettingsAreUsageErrors(t *testing.T) {
	for _, args := range [][]string{
		{"--gateways", "2"}, {"--gateway-config", "f"}, {"--gateway-arg", "a=b"}, {"--gateway=false", "--gateways", "2"},
		{"--gateways", "0"}, {"--gateway", "--gateways", "0"}, {"--gateway", "--gateways", "17"}, {"--gateway", "--gateway-arg", "a"},
	} {
		s := overlay(t, DefaultSettings(), args...)
		s.Complete()
		if err := s.Validate(); !errors.Is(err, usage.Err) {
			t.Errorf("Validate() with %q = %v, want a usage error", args, err)
		}
	}
}

// TestGatewaySettingsAreKeptAndSwitchedOff checks that a saved gateway stays, also with another number of
// API servers, and that --gateway=false also resets the settings that need a gateway.
func TestGatewaySettingsAreKeptAndSwitchedOff(t *testing.T) {
	saved := overlay(t, DefaultSettings(), "--gateway", "--gateways", "2", "--gateway-config", "f", "--gateway-arg", "a=b", "--apiservers", "3")
	saved.Complete()
	for _, args := range [][]string{nil, {"--apiservers", "1"}} {
		kept := overlay(t, saved, args...)
		kept.Complete()
		if err := kept.Validate(); err != nil || len(kept.GatewayNames()) != 2 || kept.GatewayConfig != "f" {
			t.Errorf("settings after %q = %+v, Validate() = %v, want two gateways, nil", args, kept, err)
		}
	}
	off := overlay(t, saved, "--gateway=false")
	if err := off.Validate(); err != nil || off.GatewayNames() != nil || off.GatewayConfig != "" || off.GatewayArgs != nil {
		t.Errorf("settings after --gateway=false = %+v, Validate() = %v, want no gateway, nil", off, err)
	}
	if len(saved.GatewayNames()) != 2 {
		t.Error("--gateway=false changed the saved settings")
	}
}

// TestDefaultOfGatewayFollowsNumberOfAPIServers checks that a saved default is computed again.
func TestDefaultOfGatewayFollowsNumberOfAPIServers(t *testing.T) {
	saved := DefaultSettings()
	saved.Complete()
	more := overlay(t, saved, "--apiservers", "3")
	more.Complete()
	if *more.Gateway != gatewayByDefault(3) {
		t.Errorf("--gateway with three API servers = %v, want the default %v", *more.Gateway, gatewayByDefault(3))
	}
}

// TestClusterOfAnOlderK1mHasNoGateway loads a cluster.json without the fields of a gateway.
func TestClusterOfAnOlderK1mHasNoGateway(t *testing.T) {
	dir := testDir(t)
	content := `{"layout": 1, "settings": {"nodes": 1, "zones": 1, "store": "mem_etcd", "scheduler": "kube-scheduler", "apiservers": 1}}`
	if err := atomicfile.Write(dir.clusterFile(), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	config, err := Load(dir)
	if err != nil || config.Settings.GatewayNames() != nil {
		t.Fatalf("Load() = %+v, %v, want no gateway", config, err)
	}
	config.Settings.Complete()
	if err := config.Settings.Validate(); err != nil || config.Settings.GatewayNames() != nil {
		t.Errorf("GatewayNames() = %q, Validate() = %v, want none, nil", config.Settings.GatewayNames(), err)
	}
}
