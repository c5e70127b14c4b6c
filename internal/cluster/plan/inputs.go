package plan

import (
	"math"
	"time"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// Cluster describes the size and the load of a cluster.
type Cluster struct {
	Nodes       int     `json:"nodes"`
	PodsPerNode float64 `json:"podsPerNode"`
	// LeaseInterval is the interval at which a node renews its Lease. StatusInterval is the
	// interval at which it reports an unchanged status.
	LeaseInterval  time.Duration `json:"leaseInterval"`
	StatusInterval time.Duration `json:"statusInterval"`
	// WatchesPerNode and ConnectionsPerNode are the open watches and connections of a node.
	WatchesPerNode     float64 `json:"watchesPerNode"`
	ConnectionsPerNode float64 `json:"connectionsPerNode"`
	// PodLife is the lifetime of a pod. Another pod replaces it afterwards.
	PodLife time.Duration `json:"podLife"`
	// EventsPerPod is the number of Events in the life of a pod. EventLife is their TTL.
	EventsPerPod float64       `json:"eventsPerPod"`
	EventLife    time.Duration `json:"eventLife"`
	// LeaseWatchers is the number of clients that watch all Leases, such as the node controller.
	// The watch caches of the API servers are not included.
	LeaseWatchers int `json:"leaseWatchers"`
	// Fill is the rate, in pods per second, at which pods are created in addition to those that
	// replace others; 0 for a cluster that is full.
	Fill float64 `json:"fill"`
	// LeasesCached means that API servers have a watch cache for Leases.
	LeasesCached bool `json:"leasesCached"`
	// LeasesLogged means that the store writes Leases to its log.
	LeasesLogged bool `json:"leasesLogged"`
	// Gateway means that all clients connect to kube-gateways, which forward to the API servers.
	Gateway bool `json:"gateway"`
}

// Machines describes the machines of the components. Cores, memory, network and disk are those of one
// machine.
type Machines struct {
	StoreCores      float64 `json:"storeCores"`
	StoreGiB        float64 `json:"storeGiB"`
	APIServerCores  float64 `json:"apiServerCores"`
	APIServerGiB    float64 `json:"apiServerGiB"`
	APIServers      int     `json:"apiServers"` // maximum number
	GatewayCores    float64 `json:"gatewayCores"`
	GatewayGiB      float64 `json:"gatewayGiB"`
	SchedulerCores  float64 `json:"schedulerCores"`
	SchedulerGiB    float64 `json:"schedulerGiB"`
	NetworkGbit     float64 `json:"networkGbit"`
	DiskMBps        float64 `json:"diskMBps"`
	ConnectionsEach int     `json:"connectionsEach"` // maximum number of connections of one API server or gateway
	// Busy is the usable fraction of a machine's CPU, memory, network and disk.
	Busy float64 `json:"busy"`
}

// AddFlags binds the fields to flags.
func (c *Cluster) AddFlags(fs *pflag.FlagSet) {
	fs.IntVar(&c.Nodes, "nodes", c.Nodes, "number of nodes")
	fs.Float64Var(&c.PodsPerNode, "pods-per-node", c.PodsPerNode, "average number of pods on a node")
	fs.DurationVar(&c.PodLife, "pod-life", c.PodLife, "lifetime of a pod, after which another pod replaces it")
	fs.Float64Var(&c.Fill, "fill", c.Fill, "additional pods created per second while the cluster is filled")
	fs.Float64Var(&c.EventsPerPod, "events-per-pod", c.EventsPerPod, "number of Events in the life of a pod")
	fs.DurationVar(&c.EventLife, "event-life", c.EventLife, "TTL of Events, as set by --event-ttl of kube-apiserver")
	fs.DurationVar(&c.LeaseInterval, "lease-interval", c.LeaseInterval, "interval at which a node renews its Lease")
	fs.BoolVar(&c.LeasesCached, "lease-cache", c.LeasesCached, "API servers have a watch cache for Leases; kube-apiserver --watch-cache-sizes=leases.coordination.k8s.io#0 disables it")
	fs.BoolVar(&c.LeasesLogged, "lease-log", c.LeasesLogged, "the store logs Leases; mem_etcd --wal-mode-prefix=/registry/leases/=none disables it")
	fs.BoolVar(&c.Gateway, "gateway", c.Gateway, "all clients connect to kube-gateways in front of the API servers")
	fs.IntVar(&c.LeaseWatchers, "lease-watchers", c.LeaseWatchers, "number of clients that watch all Leases, such as the node controller")
	fs.DurationVar(&c.StatusInterval, "status-interval", c.StatusInterval, "interval at which a node reports an unchanged status")
	fs.Float64Var(&c.WatchesPerNode, "watches-per-node", c.WatchesPerNode, "number of watches of a node: those of its kubelet and kube-proxy, and one for each ConfigMap and Secret of its pods")
	fs.Float64Var(&c.ConnectionsPerNode, "connections-per-node", c.ConnectionsPerNode, "number of connections of a node to API servers")
}

// AddFlags binds the fields to flags.
func (m *Machines) AddFlags(fs *pflag.FlagSet) {
	fs.Float64Var(&m.StoreCores, "store-cores", m.StoreCores, "cores of the store's machine")
	fs.Float64Var(&m.StoreGiB, "store-memory", m.StoreGiB, "memory of the store's machine, in GiB")
	fs.Float64Var(&m.DiskMBps, "disk", m.DiskMBps, "write rate of the store's disk, in MB/s")
	fs.Float64Var(&m.APIServerCores, "apiserver-cores", m.APIServerCores, "cores of an API server's machine")
	fs.Float64Var(&m.APIServerGiB, "apiserver-memory", m.APIServerGiB, "memory of an API server's machine, in GiB")
	fs.IntVar(&m.APIServers, "max-apiservers", m.APIServers, "maximum number of API servers")
	fs.Float64Var(&m.GatewayCores, "gateway-cores", m.GatewayCores, "cores of a kube-gateway's machine")
	fs.Float64Var(&m.GatewayGiB, "gateway-memory", m.GatewayGiB, "memory of a kube-gateway's machine, in GiB")
	fs.IntVar(&m.ConnectionsEach, "max-connections", m.ConnectionsEach, "maximum number of connections of one API server or kube-gateway")
	fs.Float64Var(&m.SchedulerCores, "scheduler-cores", m.SchedulerCores, "cores of a scheduler replica's machine")
	fs.Float64Var(&m.SchedulerGiB, "scheduler-memory", m.SchedulerGiB, "memory of a scheduler replica's machine, in GiB")
	fs.Float64Var(&m.NetworkGbit, "network", m.NetworkGbit, "network bandwidth of each machine, in Gbit/s")
	fs.Float64Var(&m.Busy, "busy", m.Busy, "usable fraction of the CPU, memory, network and disk of each machine")
}

// DefaultCluster returns a cluster of a million real nodes.
func DefaultCluster() Cluster {
	return Cluster{
		Nodes: 1_000_000, PodsPerNode: 30, LeaseInterval: 10 * time.Second, StatusInterval: 5 * time.Minute,
		WatchesPerNode: 18, ConnectionsPerNode: 2, PodLife: 24 * time.Hour, EventsPerPod: 5, EventLife: time.Hour,
		LeaseWatchers: 1, LeasesCached: true,
	}
}

// DefaultMachines returns large cloud machines.
func DefaultMachines() Machines {
	return Machines{
		StoreCores: 16, StoreGiB: 128, APIServerCores: 192, APIServerGiB: 744, APIServers: 64, GatewayCores: 16, GatewayGiB: 64,
		SchedulerCores: 32, SchedulerGiB: 128, NetworkGbit: 50, DiskMBps: 2000, ConnectionsEach: 500_000, Busy: 0.7,
	}
}

// Validate returns a usage error if a field is invalid.
func (c *Cluster) Validate() error {
	switch {
	case c.Nodes < 1 || c.Nodes > 100_000_000:
		return usage.Errorf("--nodes %d: choose 1 to 100000000", c.Nodes)
	case math.IsNaN(c.PodsPerNode + c.WatchesPerNode + c.ConnectionsPerNode + c.EventsPerPod + c.Fill):
		return usage.Errorf("a flag has the value NaN; use a number")
	case c.PodsPerNode < 0, c.WatchesPerNode < 0, c.ConnectionsPerNode < 0, c.EventsPerPod < 0, c.LeaseWatchers < 0, c.Fill < 0:
		return usage.Errorf("--pods-per-node, --watches-per-node, --connections-per-node, --events-per-pod, --lease-watchers and --fill must be 0 or more")
	case c.LeaseInterval <= 0, c.StatusInterval <= 0, c.PodLife <= 0, c.EventLife < 0:
		return usage.Errorf("--lease-interval, --status-interval and --pod-life must be more than 0, and --event-life 0 or more")
	}
	return nil
}

// Validate returns a usage error if a field is invalid.
func (m *Machines) Validate() error {
	for name, value := range map[string]float64{
		"--store-cores": m.StoreCores, "--store-memory": m.StoreGiB, "--apiserver-cores": m.APIServerCores, "--apiserver-memory": m.APIServerGiB,
		"--max-apiservers": float64(m.APIServers), "--gateway-cores": m.GatewayCores, "--gateway-memory": m.GatewayGiB, "--scheduler-cores": m.SchedulerCores, "--scheduler-memory": m.SchedulerGiB,
		"--network": m.NetworkGbit, "--disk": m.DiskMBps, "--max-connections": float64(m.ConnectionsEach), "--busy": m.Busy,
	} {
		if !(value > 0) {
			return usage.Errorf("%s %v: must be more than 0", name, value)
		}
	}
	if m.Busy > 1 {
		return usage.Errorf("--busy %v: must be at most 1", m.Busy)
	}
	return nil
}
