// Package clusterdir manages the directory in which k1m keeps a cluster:
//
//   - [Settings] are the values of the flags of `k1m up`.
//   - [Config] is the content of cluster.json: settings and assigned [Ports].
//   - [Dir] returns the paths of all files.
//   - [Lock] prevents concurrent use of a cluster or of a data directory.
package clusterdir

import (
	"fmt"
	"slices"
	"strings"
)

// Values of [Settings] fields.
const (
	// Values of Settings.Store, and of [Settings.StoreKind].
	StoreMemEtcd = "mem_etcd"
	StoreEtcd    = "etcd"
	// StoreExternal is the kind of a store that k1m does not run (--store-address).
	StoreExternal = "external"

	// Values of Settings.Scheduler.
	SchedulerKube = "kube-scheduler"
	SchedulerDist = "dist-scheduler"

	// Values of Settings.NodeSimulator.
	SimulatorKwok    = "kwok"
	SimulatorNodeSim = "node-sim"

	// Values of Settings.NodeMode.
	NodesShared = "shared"
	NodesWire   = "wire"
	NodesMixed  = "mixed"

	// Values of Settings.SchedulerIntake.
	IntakeWatch   = "watch"
	IntakeWebhook = "webhook"

	// Values of Settings.WALMode.
	WALNone     = "none"
	WALBuffered = "buffered"
	WALFsync    = "fsync"

	// Values of Settings.TraceValues: the trace contains neither values nor their sizes (none), only the
	// sizes (sizes), or the sizes and the values (full).
	TraceNone  = "none"
	TraceSizes = "sizes"
	TraceFull  = "full"

	// Values of Settings.Standby.
	StandbyWarm = "warm"
	StandbyCold = "cold"

	// ControllerManager is the name of kube-controller-manager in Settings.Without. It is also the component name of
	// the first controller manager, whatever its program.
	ControllerManager = "kube-controller-manager"

	// DefaultName is the name of the cluster if --name is not set.
	DefaultName = "k1m"
)

const (
	// maxAPIServers is a limit because more API servers would only compete for the cores of the machine.
	maxAPIServers = 16
	maxSchedulers = 64
	maxNodeSims   = 16
	// maxControllerManagers is a limit because each has all objects of the cluster in memory, or will have them.
	maxControllerManagers = 8

	// defaultEtcdPrefix is the default of the flag --etcd-prefix of kube-apiserver.
	defaultEtcdPrefix = "/registry"
)

// Settings are the values of the flags of `k1m up`. They are saved, so that a later `k1m up` without
// flags starts the same cluster again.
type Settings struct {
	Nodes      int    `json:"nodes"`
	Zones      int    `json:"zones"`
	Store      string `json:"store"`
	WALMode    string `json:"walMode"`
	Scheduler  string `json:"scheduler"`
	APIServers int    `json:"apiservers"`
	// NodeSimulator is the program that simulates the nodes.
	NodeSimulator string `json:"nodeSimulator"`
	// NodeMode is how node-sim connects the nodes. WireNodes is the number of nodes with a connection of
	// their own if it is NodesMixed.
	NodeMode  string `json:"nodeMode,omitempty"`
	WireNodes int    `json:"wireNodes,omitempty"`
	// NodeSims is the number of node-sim processes, which divide the nodes among themselves.
	NodeSims int `json:"nodeSims,omitempty"`
	// SchedulerReplicas is the number of schedulers that own nodes. Several schedulers divide the
	// nodes among themselves.
	SchedulerReplicas int `json:"schedulerReplicas"`
	// SchedulerRelays is the number of additional schedulers that own no nodes and only
	// relay queries.
	SchedulerRelays int `json:"schedulerRelays,omitempty"`
	// SchedulerIntake is how dist-scheduler receives new pods.
	SchedulerIntake string `json:"schedulerIntake"`

	// ControllerManagers is the number of controller managers. One leads, the others are its standby.
	ControllerManagers int `json:"controllerManagers,omitempty"`
	// Standby is the kind of standby: StandbyCold is kube-controller-manager, StandbyWarm warm-controller-manager.
	Standby string `json:"standby,omitempty"`

	// DataDir is the store's data directory; empty for [Dir.Data].
	DataDir string `json:"dataDir,omitempty"`
	// APIServerPort is the port of the first API server; 0 for any free port. Further API
	// servers always use free ports.
	APIServerPort int `json:"apiserverPort,omitempty"`

	// Gateway means that kube-gateway runs in front of the API servers, and that clients connect to
	// it. It is nil until [Settings.Complete] sets the default, which depends on the number of API
	// servers.
	Gateway *bool `json:"gateway,omitempty"`
	// Gateways is the number of kube-gateway processes.
	Gateways int `json:"gateways"`
	// GatewayConfig is a YAML file with further fields of the gateways' configuration.
	GatewayConfig string `json:"gatewayConfig,omitempty"`

	// StoreAddress is the URL of a running store. If it is set, k1m starts no store.
	StoreAddress string `json:"storeAddress,omitempty"`
	StoreCAFile  string `json:"storeCAFile,omitempty"`
	StoreCert    string `json:"storeCertFile,omitempty"`
	StoreKey     string `json:"storeKeyFile,omitempty"`

	// StoreReplicas is the number of members of the store. ReplicationLog is what the members of a mem_etcd keep on the
	// disk; empty for another store, or one member.
	StoreReplicas  int    `json:"storeReplicas,omitempty"`
	ReplicationLog string `json:"replicationLog,omitempty"`
	// StoreFaults means that the supervisor forwards the connections between the members, so that it can cut them off.
	StoreFaults bool `json:"storeFaults,omitempty"`

	// StoreFor are the resources that have a store process of their own. An entry is RESOURCES=own. Settings.OwnStores
	// returns the resources.
	StoreFor []string `json:"storeFor,omitempty"`

	// Trace means that etcd-proxy runs between the API servers and the store. TraceFile is empty for
	// the default in [Dir.Traces].
	Trace       bool   `json:"trace,omitempty"`
	TraceFile   string `json:"traceFile,omitempty"`
	TraceValues string `json:"traceValues,omitempty"`

	APIServerArgs         []string `json:"apiserverArgs,omitempty"`
	APIServerEnv          []string `json:"apiserverEnv,omitempty"`
	ControllerManagerArgs []string `json:"controllerManagerArgs,omitempty"`
	ControllerManagerEnv  []string `json:"controllerManagerEnv,omitempty"`
	SchedulerArgs         []string `json:"schedulerArgs,omitempty"`
	SchedulerEnv          []string `json:"schedulerEnv,omitempty"`
	StoreArgs             []string `json:"storeArgs,omitempty"`
	KwokArgs              []string `json:"kwokArgs,omitempty"`
	NodeSimArgs           []string `json:"nodeSimArgs,omitempty"`
	GatewayArgs           []string `json:"gatewayArgs,omitempty"`

	// CPUs restricts components to CPUs. An entry is NAME=LIST. NAME is a component, a program or
	// [AnyScheduler]; LIST is a CPU list such as 0-3,8.
	CPUs []string `json:"cpus,omitempty"`

	// Without are the components that do not run: ControllerManager or AnyScheduler.
	Without []string `json:"without,omitempty"`

	// Profile is ProfileAuto, ProfileNone or the name of a profile, which sets settings for many nodes. Applied is
	// the profile that was applied, and Kept are the flags that it left alone because the user has set them.
	Profile string         `json:"profile,omitempty"`
	Applied AppliedProfile `json:"appliedProfile,omitzero"`
	Kept    []string       `json:"profileKept,omitempty"`
}

// DefaultSettings returns settings for a small cluster that runs on a laptop.
func DefaultSettings() Settings {
	return Settings{
		Nodes:         100,
		Zones:         3,
		Store:         StoreMemEtcd,
		StoreReplicas: 1,
		Scheduler:     SchedulerKube,
		APIServers:    1,
		Gateways:      1,

		NodeSimulator:     SimulatorKwok,
		NodeSims:          1,
		SchedulerReplicas: 1,
		SchedulerIntake:   IntakeWatch,
		Profile:           ProfileNone,

		ControllerManagers: 1,
		Standby:            StandbyCold,
	}
}

// Complete sets the defaults of empty fields. The default of WALMode depends on the store, that of Gateway
// on the number of API servers. A mem_etcd with several members has no WAL mode.
func (s *Settings) Complete() {
	if s.Gateway == nil {
		s.Gateway = new(gatewayByDefault(s.APIServers))
	}
	// An older k1m saved settings without Profile, NodeSimulator, NodeSims, SchedulerReplicas, SchedulerIntake,
	// ControllerManagers and Standby.
	if s.Profile == "" {
		s.Profile = ProfileNone
	}
	if s.NodeSimulator == "" {
		s.NodeSimulator = SimulatorKwok
	}
	if s.NodeSimulator == SimulatorNodeSim && s.NodeMode == "" {
		s.NodeMode = NodesShared
	}
	if s.NodeSims == 0 {
		s.NodeSims = 1
	}
	if s.SchedulerReplicas == 0 {
		s.SchedulerReplicas = 1
	}
	if s.SchedulerIntake == "" {
		s.SchedulerIntake = IntakeWatch
	}
	if s.ControllerManagers == 0 {
		s.ControllerManagers = 1
	}
	if s.Standby == "" {
		s.Standby = StandbyCold
	}
	s.completeStoreFor()
	s.completeStoreReplicas()
	if s.WALMode != "" || s.replicatesMemEtcd() {
		return
	}
	s.WALMode = WALBuffered
	if s.Store == StoreEtcd {
		s.WALMode = WALFsync
	}
}

// DescribeStore describes the store and its durability for users.
func (s *Settings) DescribeStore() string {
	if s.StoreAddress != "" {
		return "store " + s.StoreAddress
	}
	text := s.Store
	if mode := s.OwnWALMode(); mode != "" {
		text += ", wal-mode " + mode
	}
	text += s.describeMembers()
	if own := s.OwnStores(); len(own) > 0 {
		text += ", own stores for " + strings.Join(own, ", ")
	}
	return text
}

// StoreKind returns the store program that k1m runs, or StoreExternal.
func (s *Settings) StoreKind() string {
	if s.StoreAddress != "" {
		return StoreExternal
	}
	return s.Store
}

// OwnWALMode returns the WAL mode of a mem_etcd that k1m runs; empty for another store.
func (s *Settings) OwnWALMode() string {
	if s.StoreKind() != StoreMemEtcd {
		return ""
	}
	return s.WALMode
}

// KeepsData reports whether k1m runs a store that writes to a data directory.
func (s *Settings) KeepsData() bool {
	return s.StoreAddress == "" && s.WALMode != WALNone && s.ReplicationLog != LogMemory
}

// FilesPerConnection are the open files that a gateway needs for a node with a connection of its own: the second is
// the connection to an API server.
const FilesPerConnection = 2

// Connections returns the number of nodes with a connection of their own.
func (s *Settings) Connections() int {
	switch s.NodeMode {
	case NodesWire:
		return s.Nodes
	case NodesMixed:
		return s.WireNodes
	}
	return 0
}

// Runs reports whether a component runs that --without can leave out: ControllerManager or AnyScheduler.
func (s *Settings) Runs(name string) bool { return !slices.Contains(s.Without, name) }

// SimulatorNames returns the component names of the programs that simulate the nodes.
func (s *Settings) SimulatorNames() []string {
	names := []string{s.NodeSimulator}
	for i := 1; i < s.NodeSims; i++ {
		names = append(names, fmt.Sprintf("%s-%d", s.NodeSimulator, i))
	}
	return names
}

// EtcdPrefix returns the prefix of the keys of the API servers, without a slash at its end.
func (s *Settings) EtcdPrefix() string {
	prefix := defaultEtcdPrefix
	for _, arg := range s.APIServerArgs {
		if value, found := strings.CutPrefix(strings.TrimLeft(arg, "-"), "etcd-prefix="); found {
			prefix = "/" + strings.Trim(value, "/")
		}
	}
	return prefix
}

// HasReplicas reports whether several schedulers, including relays, run as replicas.
func (s *Settings) HasReplicas() bool { return s.SchedulerReplicas+s.SchedulerRelays > 1 }

// Schedulers returns the component names of all schedulers. Relays come last.
func (s *Settings) Schedulers() []string {
	names := []string{s.Scheduler}
	for i := 1; i < s.SchedulerReplicas; i++ {
		names = append(names, fmt.Sprintf("%s-%d", s.Scheduler, i))
	}
	for i := range s.SchedulerRelays {
		names = append(names, fmt.Sprintf("%s-relay-%d", s.Scheduler, i))
	}
	return names
}

// ControllerManagerNames returns the component names of all controller managers.
func (s *Settings) ControllerManagerNames() []string {
	names := []string{ControllerManager}
	for i := 1; i < s.ControllerManagers; i++ {
		names = append(names, fmt.Sprintf("%s-%d", ControllerManager, i))
	}
	return names
}

// ReplicaPort returns the name of the port on which a scheduler serves the other replicas.
func ReplicaPort(scheduler string) string { return scheduler + "-replica" }

// IntakePort returns the name of the port on which a scheduler serves the admission webhook. API servers
// call only the webhook of the leader.
func IntakePort(scheduler string) string { return scheduler + "-intake" }
