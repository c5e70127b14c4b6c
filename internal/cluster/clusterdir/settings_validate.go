package clusterdir

import (
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// validName matches names that are valid as the name of a directory, a certificate subject and a
// kubeconfig context.
var validName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$`)

// Validate returns a usage error, with the remedy, for the first invalid setting.
func (s *Settings) Validate() error {
	for _, check := range []func() error{s.validateNodesAndAPIServers, s.validateNodeSimulator, s.validateGateway, s.validateStore, s.validateOwnStores, s.validateStoreReplicas, s.validateTrace, s.validateScheduler, s.validateControllerManagers, s.validatePassThrough, s.validateCPUs} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (s *Settings) validateNodesAndAPIServers() error {
	switch {
	case s.Nodes < 0:
		return usage.Errorf("--nodes %d: a cluster cannot have fewer than 0 nodes; use --nodes 0 for a cluster without nodes", s.Nodes)
	case s.Zones < 1:
		return usage.Errorf("--zones %d: nodes need at least one zone; use --zones 1", s.Zones)
	case s.APIServers < 1 || s.APIServers > maxAPIServers:
		return usage.Errorf("--apiservers %d: choose 1 to %d", s.APIServers, maxAPIServers)
	case s.APIServerPort < 0 || s.APIServerPort > 65535:
		return usage.Errorf("--apiserver-port %d: valid ports are 1 to 65535; omit the flag to use any free port", s.APIServerPort)
	}
	return nil
}

func (s *Settings) validateStore() error {
	switch {
	case s.Store != StoreMemEtcd && s.Store != StoreEtcd:
		return usage.Errorf("--store %q: no such store; choose mem_etcd or etcd", s.Store)
	case s.WALMode != "" && !slices.Contains([]string{WALNone, WALBuffered, WALFsync}, s.WALMode):
		return usage.Errorf("--wal-mode %q: no such mode; choose none, buffered or fsync", s.WALMode)
	case s.Store == StoreEtcd && s.WALMode != "" && s.WALMode != WALFsync:
		return usage.Errorf("--wal-mode %s: etcd always uses fsync; omit the flag or use --store mem_etcd", s.WALMode)
	case s.WALMode == WALNone && s.DataDir != "":
		return usage.Errorf("--wal-mode none stores no data, so it cannot be combined with --data-dir; omit one of them")
	case s.StoreAddress == "":
		if s.StoreCAFile+s.StoreCert+s.StoreKey != "" {
			return usage.Errorf("--store-cafile, --store-certfile and --store-keyfile need --store-address; add it")
		}
		return nil
	}
	return s.validateStoreAddress()
}

func (s *Settings) validateStoreAddress() error {
	u, err := url.Parse(s.StoreAddress)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Port() == "" {
		return usage.Errorf("--store-address %q: not a URL with a port; write it like https://127.0.0.1:2379", s.StoreAddress)
	}
	if (s.StoreCert == "") != (s.StoreKey == "") {
		return usage.Errorf("--store-certfile and --store-keyfile must be used together; set both or neither")
	}
	return nil
}

func (s *Settings) validateNodeSimulator() error {
	switch {
	case s.NodeSimulator != SimulatorKwok && s.NodeSimulator != SimulatorNodeSim:
		return usage.Errorf("--node-simulator %q: no such program; choose kwok or node-sim", s.NodeSimulator)
	case s.NodeSims < 1 || s.NodeSims > maxNodeSims:
		return usage.Errorf("--node-sims %d: choose 1 to %d", s.NodeSims, maxNodeSims)
	case s.NodeSimulator == SimulatorKwok && s.NodeSims > 1:
		return usage.Errorf("--node-sims %d: there is one kwok; add --node-simulator node-sim", s.NodeSims)
	case s.NodeSimulator == SimulatorKwok && s.NodeMode != "":
		return usage.Errorf("--node-mode %s: kwok has no modes; add --node-simulator node-sim", s.NodeMode)
	case s.NodeSimulator == SimulatorNodeSim && !slices.Contains([]string{NodesShared, NodesWire, NodesMixed}, s.NodeMode):
		return usage.Errorf("--node-mode %q: choose shared, wire or mixed", s.NodeMode)
	case s.NodeMode == NodesMixed && s.WireNodes < 1:
		return usage.Errorf("--node-mode mixed: set --wire-nodes to the number of nodes with a connection of their own")
	case s.NodeMode != NodesMixed && s.WireNodes != 0:
		return usage.Errorf("--wire-nodes %d: only for --node-mode mixed", s.WireNodes)
	}
	return nil
}

func (s *Settings) validateTrace() error {
	switch {
	case !s.Trace && s.TraceFile+s.TraceValues != "":
		return usage.Errorf("--trace-file and --trace-values need --trace; add it")
	case s.TraceValues != "" && !slices.Contains([]string{TraceNone, TraceSizes, TraceFull}, s.TraceValues):
		return usage.Errorf("--trace-values %q: choose none, sizes or full", s.TraceValues)
	}
	return nil
}

func (s *Settings) validateScheduler() error {
	if s.Scheduler != SchedulerKube && s.Scheduler != SchedulerDist {
		return usage.Errorf("--scheduler %q: no such scheduler; choose kube-scheduler or dist-scheduler", s.Scheduler)
	}
	for _, name := range s.Without {
		if name != ControllerManager && name != AnyScheduler {
			return usage.Errorf("--without %q: choose %s or %s", name, ControllerManager, AnyScheduler)
		}
	}
	if !s.Runs(AnyScheduler) && s.SchedulerIntake == IntakeWebhook {
		return usage.Errorf("--without scheduler: --scheduler-intake webhook needs one; omit one of them")
	}
	if err := s.validateReplicas(); err != nil {
		return err
	}
	return s.validateIntake()
}

func (s *Settings) validateControllerManagers() error {
	switch {
	case s.ControllerManagers < 1 || s.ControllerManagers > maxControllerManagers:
		return usage.Errorf("--controller-managers %d: choose 1 to %d; --without %s omits it", s.ControllerManagers, maxControllerManagers, ControllerManager)
	case s.Standby != StandbyWarm && s.Standby != StandbyCold:
		return usage.Errorf("--standby %q: choose warm or cold", s.Standby)
	case s.Standby == StandbyWarm && s.ControllerManagers == 1:
		return usage.Errorf("--standby warm: a single controller manager has no standby; add --controller-managers 2")
	case s.ControllerManagers > 1 && !s.Runs(ControllerManager):
		return usage.Errorf("--controller-managers %d: --without %s omits them; omit one of the flags", s.ControllerManagers, ControllerManager)
	}
	return nil
}

func (s *Settings) validateReplicas() error {
	switch {
	case s.SchedulerReplicas < 1 || s.SchedulerReplicas > maxSchedulers:
		return usage.Errorf("--scheduler-replicas %d: choose 1 to %d", s.SchedulerReplicas, maxSchedulers)
	case s.SchedulerRelays < 0 || s.SchedulerRelays > maxSchedulers:
		return usage.Errorf("--scheduler-relays %d: choose 0 to %d", s.SchedulerRelays, maxSchedulers)
	case s.Scheduler != SchedulerDist && s.SchedulerReplicas+s.SchedulerRelays > 1:
		return usage.Errorf("--scheduler-replicas and --scheduler-relays: %s does not support replicas; add --scheduler dist-scheduler", s.Scheduler)
	}
	return nil
}

func (s *Settings) validateIntake() error {
	switch {
	case s.SchedulerIntake == IntakeWatch:
	case s.SchedulerIntake == "both":
		return usage.Errorf("--scheduler-intake both: the webhook always includes the watch; use --scheduler-intake webhook")
	case s.SchedulerIntake != IntakeWebhook:
		return usage.Errorf("--scheduler-intake %q: no such intake; choose watch or webhook", s.SchedulerIntake)
	case s.Scheduler != SchedulerDist:
		return usage.Errorf("--scheduler-intake webhook: %s supports the watch only; add --scheduler dist-scheduler", s.Scheduler)
	}
	return nil
}

// validatePassThrough checks the flags and environment variables that k1m passes to the components.
func (s *Settings) validatePassThrough() error {
	lists := []struct {
		flag   string
		values []string
	}{
		{"--apiserver-arg", s.APIServerArgs},
		{"--apiserver-env", s.APIServerEnv},
		{"--controller-manager-arg", s.ControllerManagerArgs},
		{"--controller-manager-env", s.ControllerManagerEnv},
		{"--scheduler-arg", s.SchedulerArgs},
		{"--scheduler-env", s.SchedulerEnv},
		{"--store-arg", s.StoreArgs},
		{"--kwok-arg", s.KwokArgs},
		{"--node-sim-arg", s.NodeSimArgs},
		{"--gateway-arg", s.GatewayArgs},
	}
	for _, list := range lists {
		for _, value := range list.values {
			if key, _, found := strings.Cut(value, "="); !found || strings.TrimLeft(key, "-") == "" {
				return usage.Errorf("%s %q: not of the form key=value", list.flag, value)
			}
		}
	}
	return nil
}

// ValidateName returns a usage error if a name is not a valid cluster name.
func ValidateName(name string) error {
	if !validName.MatchString(name) {
		return usage.Errorf("--name %q: use 1 to 40 characters of a-z, 0-9 and '-'; the first and last must be a letter or digit", name)
	}
	return nil
}
