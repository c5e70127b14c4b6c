package profile

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

var machine = Machine{Memory: 24 << 30, OpenFiles: 20_000}

// up returns the settings of `k1m up` with a command line, for a cluster with saved settings.
func up(t *testing.T, saved clusterdir.Settings, args ...string) clusterdir.Settings {
	t.Helper()
	given := clusterdir.DefaultSettings()
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	given.AddFlags(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	settings, err := clusterdir.Overlay(Remove(saved), flags)
	if err != nil {
		t.Fatal(err)
	}
	if settings, err = Apply(settings, flags, machine); err != nil {
		t.Fatal(err)
	}
	settings.Complete()
	if err := settings.Validate(); err != nil {
		t.Errorf("settings with %q are invalid: %v", args, err)
	}
	return settings
}

func auto() clusterdir.Settings {
	s := clusterdir.DefaultSettings()
	s.Profile = clusterdir.ProfileAuto
	return s
}

func has(s clusterdir.Settings, flag, entry string) bool {
	return slices.ContainsFunc(s.Applied.Changes, func(c clusterdir.ProfileChange) bool {
		return c.Flag == flag && c.Value == entry && c.Reason != ""
	})
}

func TestProfilesAreChosenByTheNumberOfNodes(t *testing.T) {
	for nodes, want := range map[string]string{"9999": "", "10000": "10k", "49999": "10k", "100000": "50k", "300000": "200k", "1000000": "700k"} {
		if got := up(t, auto(), "--nodes", nodes).Applied.Name; got != want {
			t.Errorf("--nodes %s has the profile %q, want %q", nodes, got, want)
		}
	}
	if s := up(t, auto(), "--nodes", "1000000", "--profile", "none"); s.Applied.Name != "" || s.NodeSimulator != clusterdir.SimulatorKwok {
		t.Errorf("--profile none applies %+v", s.Applied)
	}
	if s := up(t, auto(), "--nodes", "5", "--profile", "50k"); s.Applied.Name != "50k" {
		t.Errorf("--profile 50k applies %+v", s.Applied)
	}
	s := auto()
	s.Profile = "100k"
	if _, err := Apply(s, pflag.NewFlagSet("", pflag.ContinueOnError), machine); !errors.Is(err, usage.Err) {
		t.Errorf("an unknown profile gives %v, want a usage error", err)
	}
}

// Each profile sets valid values, in all modes of nodes and with all programs.
func TestProfilesSetValidValues(t *testing.T) {
	for _, name := range Names() {
		s := up(t, auto(), "--nodes", "1000000", "--profile", name)
		if s.NodeSimulator != clusterdir.SimulatorNodeSim || len(s.GatewayNames()) != 1 || !has(s, "gateway-arg", "node-path-leases=on") || has(s, "gateway-arg", "node-path-watches=on") {
			t.Errorf("profile %s: nodes do not renew Leases through a gateway: %+v", name, s.Applied)
		}
		wire := up(t, auto(), "--nodes", "1000000", "--profile", name, "--node-mode", "wire")
		if wire.NodeMode != clusterdir.NodesWire || !has(wire, "gateway-arg", "node-path-watches=on") {
			t.Errorf("profile %s: kubelets with watches of their own are not served by the gateway: %+v", name, wire.Applied)
		}
		for _, change := range s.Applied.Changes {
			if strings.Contains(change.Reason, "\n") || change.Reason == "" {
				t.Errorf("profile %s: the reason of %s is %q, want one line", name, change, change.Reason)
			}
		}
	}
}

// A process has at most so many open files, and an address so many local ports.
func TestConnectionsOfNodesAreSpread(t *testing.T) {
	for nodes, want := range map[string][2]int{"9000": {1, 1}, "30000": {4, 2}, "70000": {8, 4}} {
		s := up(t, auto(), "--nodes", nodes, "--profile", "50k", "--node-mode", "wire")
		if s.Gateways != want[0] || s.NodeSims != want[0] || s.APIServers != want[1] {
			t.Errorf("%s nodes have %d gateways and %d API servers, want %v", nodes, s.Gateways, s.APIServers, want)
		}
	}
	shared := up(t, auto(), "--nodes", "300000")
	mixed := up(t, auto(), "--nodes", "300000", "--node-mode", "mixed", "--wire-nodes", "9000")
	if shared.Gateways != 1 || mixed.Gateways != 1 {
		t.Errorf("%d and %d gateways, want one for few connections", shared.Gateways, mixed.Gateways)
	}
}

func TestTheUserWins(t *testing.T) {
	s := up(t, auto(), "--nodes", "300000", "--node-simulator", "kwok", "--scheduler", "kube-scheduler",
		"--controller-manager-arg", "--node-monitor-period=7s", "--apiserver-env", "GOMEMLIMIT=1GiB")
	if s.NodeSimulator != clusterdir.SimulatorKwok || s.Scheduler != clusterdir.SchedulerKube || len(s.GatewayNames()) != 0 {
		t.Errorf("the profile overrides flags of the user: %+v", s)
	}
	if n := len(s.APIServerEnv); n != 1 {
		t.Errorf("kube-apiserver's environment is %q, want that of the user", s.APIServerEnv)
	}
	if value, _ := entryOf(s.ControllerManagerArgs, "node-monitor-period"); value != "7s" {
		t.Errorf("kube-controller-manager's arguments are %q, want those of the user first", s.ControllerManagerArgs)
	}
	// Defaults that the user has chosen stay chosen.
	again := up(t, s)
	if again.NodeSimulator != clusterdir.SimulatorKwok || again.Scheduler != clusterdir.SchedulerKube {
		t.Errorf("the next `k1m up` overrides flags of the user: %+v", again)
	}
	if off := up(t, auto(), "--nodes", "20000", "--gateway=false"); len(off.GatewayNames()) != 0 || len(off.GatewayArgs) != 0 {
		t.Errorf("--gateway=false has a gateway: %+v", off)
	}
	if own := up(t, auto(), "--nodes", "20000", "--gateway", "--gateway-config", "f"); len(own.GatewayArgs) != 0 {
		t.Errorf("the profile overrides the file of --gateway-config by %q", own.GatewayArgs)
	}
}

func TestTheGracePeriodFollowsTheUsersInterval(t *testing.T) {
	for arg, want := range map[string]string{"lease-interval=100s": "8m20s", "node-lease-duration-seconds=400": "8m20s", "v=1": "2m0s"} {
		s := up(t, auto(), "--nodes", "20000", "--node-sim-arg", arg)
		if got, _ := entryOf(s.ControllerManagerArgs, "node-monitor-grace-period"); got != want {
			t.Errorf("with %s the grace period is %s, want %s", arg, got, want)
		}
	}
}

// A profile leaves nothing behind when it is removed, and a second `k1m up` changes nothing.
func TestRemoveUndoesApply(t *testing.T) {
	plain := up(t, clusterdir.DefaultSettings(), "--nodes", "1000000", "--apiserver-arg", "v=2", "--zones", "5")
	for _, name := range Names() {
		applied := up(t, plain, "--profile", name)
		if again := up(t, applied); !reflect.DeepEqual(normal(t, again), normal(t, applied)) {
			t.Errorf("profile %s: the second `k1m up` has %+v, the first %+v", name, again, applied)
		}
		removed := up(t, applied, "--profile", "none")
		if !reflect.DeepEqual(normal(t, removed), normal(t, plain)) {
			t.Errorf("profile %s: removed it leaves %+v, want %+v", name, removed, plain)
		}
	}
	// More arguments of the user do not lose those of the profile.
	s := up(t, up(t, auto(), "--nodes", "100000"), "--controller-manager-arg", "v=4")
	if len(s.ControllerManagerArgs) != 3 || s.ControllerManagerArgs[0] != "v=4" {
		t.Errorf("kube-controller-manager's arguments are %q, want v=4 and two of the profile", s.ControllerManagerArgs)
	}
}

// normal returns the flags of settings by name.
func normal(t *testing.T, s clusterdir.Settings) map[string]string {
	t.Helper()
	values := map[string]string{}
	flagsOf(&s).VisitAll(func(flag *pflag.Flag) { values[flag.Name] = flag.Value.String() })
	return values
}
