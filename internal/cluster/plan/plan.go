// Package plan says what a cluster of some size needs, by what each operation costs and
// each object takes. It knows no cluster: what it is given is a [Cluster], the [Costs] that
// were measured, and the [Machines] there are.
//
// Invariants: everything follows from rates times costs; a cost that was not measured is
// not in it; more nodes, pods or watches never need less.
//
// Missing: latency, garbage collection beyond a factor on the heap, kinds other than nodes,
// Leases, pods and Events, and controllers other than the scheduler.
package plan

import (
	"math"
	"time"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// Cluster is what is to be run.
type Cluster struct {
	Nodes       int     `json:"nodes"`
	PodsPerNode float64 `json:"podsPerNode"`
	// LeaseInterval is how often a node renews its Lease, and StatusInterval how often it
	// reports its status although nothing has changed.
	LeaseInterval  time.Duration `json:"leaseInterval"`
	StatusInterval time.Duration `json:"statusInterval"`
	// WatchesPerNode and ConnectionsPerNode that a node has at API servers.
	WatchesPerNode     float64 `json:"watchesPerNode"`
	ConnectionsPerNode float64 `json:"connectionsPerNode"`
	// PodLife is how long a pod lives; each is followed by another.
	PodLife time.Duration `json:"podLife"`
	// EventsPerPod in the life of a pod; they are kept for EventLife.
	EventsPerPod float64       `json:"eventsPerPod"`
	EventLife    time.Duration `json:"eventLife"`
	// LeaseWatchers are watches of all Leases besides those of API servers' caches, such as
	// the node controller's.
	LeaseWatchers int `json:"leaseWatchers"`
	// Fill is how fast the cluster is to be filled with pods, a second; 0 leaves it to what
	// it takes.
	Fill float64 `json:"fill"`
	// LeasesCached says that API servers keep Leases in their watch caches.
	LeasesCached bool `json:"leasesCached"`
	// LeasesLogged says that the store writes Leases to its log.
	LeasesLogged bool `json:"leasesLogged"`
}

// Machines are those that the parts run on. CPU and memory are of one.
type Machines struct {
	StoreCores      float64 `json:"storeCores"`
	StoreGiB        float64 `json:"storeGiB"`
	APIServerCores  float64 `json:"apiServerCores"`
	APIServerGiB    float64 `json:"apiServerGiB"`
	APIServers      int     `json:"apiServers"` // there may be at most
	SchedulerCores  float64 `json:"schedulerCores"`
	SchedulerGiB    float64 `json:"schedulerGiB"`
	NetworkGbit     float64 `json:"networkGbit"`
	DiskMBps        float64 `json:"diskMBps"`
	ConnectionsEach int     `json:"connectionsEach"` // that a machine can have
	// Busy is the share of a machine's CPU, memory, network and disk that may be used.
	Busy float64 `json:"busy"`
}

// AddFlags binds all of a cluster to flags.
func (c *Cluster) AddFlags(fs *pflag.FlagSet) {
	fs.IntVar(&c.Nodes, "nodes", c.Nodes, "nodes")
	fs.Float64Var(&c.PodsPerNode, "pods-per-node", c.PodsPerNode, "pods on each")
	fs.DurationVar(&c.PodLife, "pod-life", c.PodLife, "how long a pod lives; each is followed by another")
	fs.Float64Var(&c.Fill, "fill", c.Fill, "pods a second that are created besides, while the cluster is filled")
	fs.Float64Var(&c.EventsPerPod, "events-per-pod", c.EventsPerPod, "Events in the life of a pod")
	fs.DurationVar(&c.EventLife, "event-life", c.EventLife, "how long they are kept, as kube-apiserver's --event-ttl says")
	fs.DurationVar(&c.LeaseInterval, "lease-interval", c.LeaseInterval, "how often a node renews its Lease")
	fs.BoolVar(&c.LeasesCached, "lease-cache", c.LeasesCached, "API servers keep Leases in their watch caches; kube-apiserver's --watch-cache-sizes=leases.coordination.k8s.io#0 ends it")
	fs.BoolVar(&c.LeasesLogged, "lease-log", c.LeasesLogged, "the store logs Leases; mem_etcd's --wal-mode-prefix=/registry/leases/=none ends it")
	fs.IntVar(&c.LeaseWatchers, "lease-watchers", c.LeaseWatchers, "clients that watch all Leases, as the node controller does")
	fs.DurationVar(&c.StatusInterval, "status-interval", c.StatusInterval, "how often a node reports its status though nothing has changed")
	fs.Float64Var(&c.WatchesPerNode, "watches-per-node", c.WatchesPerNode, "watches that a node has: kubelet, kube-proxy, a ConfigMap or Secret of a pod is one each")
	fs.Float64Var(&c.ConnectionsPerNode, "connections-per-node", c.ConnectionsPerNode, "connections that a node has to API servers")
}

// AddFlags binds all of the machines to flags.
func (m *Machines) AddFlags(fs *pflag.FlagSet) {
	fs.Float64Var(&m.StoreCores, "store-cores", m.StoreCores, "cores of the store's machine")
	fs.Float64Var(&m.StoreGiB, "store-memory", m.StoreGiB, "its memory, GiB")
	fs.Float64Var(&m.DiskMBps, "disk", m.DiskMBps, "what its disk writes, MB/s")
	fs.Float64Var(&m.APIServerCores, "apiserver-cores", m.APIServerCores, "cores of an API server's machine")
	fs.Float64Var(&m.APIServerGiB, "apiserver-memory", m.APIServerGiB, "its memory, GiB")
	fs.IntVar(&m.APIServers, "max-apiservers", m.APIServers, "API servers that there may be")
	fs.IntVar(&m.ConnectionsEach, "max-connections", m.ConnectionsEach, "connections that one of them may have")
	fs.Float64Var(&m.SchedulerCores, "scheduler-cores", m.SchedulerCores, "cores of a scheduler replica's machine")
	fs.Float64Var(&m.SchedulerGiB, "scheduler-memory", m.SchedulerGiB, "its memory, GiB")
	fs.Float64Var(&m.NetworkGbit, "network", m.NetworkGbit, "bandwidth of each machine, Gbit/s")
	fs.Float64Var(&m.Busy, "busy", m.Busy, "share of all of that that may be used")
}

// DefaultCluster is the seed's, with real nodes.
func DefaultCluster() Cluster {
	return Cluster{
		Nodes: 1_000_000, PodsPerNode: 30, LeaseInterval: 10 * time.Second, StatusInterval: 5 * time.Minute,
		WatchesPerNode: 18, ConnectionsPerNode: 2, PodLife: 24 * time.Hour, EventsPerPod: 5, EventLife: time.Hour,
		LeaseWatchers: 1, LeasesCached: true,
	}
}

// DefaultMachines are large ones of today.
func DefaultMachines() Machines {
	return Machines{
		StoreCores: 16, StoreGiB: 128, APIServerCores: 192, APIServerGiB: 744, APIServers: 64,
		SchedulerCores: 32, SchedulerGiB: 128, NetworkGbit: 50, DiskMBps: 2000, ConnectionsEach: 500_000, Busy: 0.7,
	}
}

// Validate says what cannot be planned.
func (c *Cluster) Validate() error {
	switch {
	case c.Nodes < 1 || c.Nodes > 100_000_000:
		return usage.Errorf("--nodes %d: at least 1, at most 100 million", c.Nodes)
	case math.IsNaN(c.PodsPerNode + c.WatchesPerNode + c.ConnectionsPerNode + c.EventsPerPod + c.Fill):
		return usage.Errorf("a number that is none (NaN)")
	case c.PodsPerNode < 0, c.WatchesPerNode < 0, c.ConnectionsPerNode < 0, c.EventsPerPod < 0, c.LeaseWatchers < 0, c.Fill < 0:
		return usage.Errorf("--pods-per-node, --watches-per-node, --connections-per-node, --events-per-pod, --lease-watchers and --fill cannot be less than 0")
	case c.LeaseInterval <= 0, c.StatusInterval <= 0, c.PodLife <= 0, c.EventLife < 0:
		return usage.Errorf("--lease-interval, --status-interval and --pod-life have to be more than 0, and --event-life not less")
	}
	return nil
}

// Validate says what cannot be a machine.
func (m *Machines) Validate() error {
	for name, value := range map[string]float64{
		"--store-cores": m.StoreCores, "--store-memory": m.StoreGiB, "--apiserver-cores": m.APIServerCores, "--apiserver-memory": m.APIServerGiB,
		"--max-apiservers": float64(m.APIServers), "--scheduler-cores": m.SchedulerCores, "--scheduler-memory": m.SchedulerGiB,
		"--network": m.NetworkGbit, "--disk": m.DiskMBps, "--max-connections": float64(m.ConnectionsEach), "--busy": m.Busy,
	} {
		if !(value > 0) {
			return usage.Errorf("%s %v: it has to be more than 0", name, value)
		}
	}
	if m.Busy > 1 {
		return usage.Errorf("--busy %v: it is a share, at most 1", m.Busy)
	}
	return nil
}

// Plan is what a cluster needs.
type Plan struct {
	Cluster  Cluster  `json:"cluster"`
	Machines Machines `json:"machines"`
	Costs    Costs    `json:"costs"`
	Rates    Rates    `json:"rates"`
	Needs    Needs    `json:"needs"`
	// Limits are how many nodes each resource allows, the tightest first.
	Limits []Limit `json:"limits"`
	// Doubling is what to change, one after the other, for twice as many nodes as the first
	// limit allows.
	Doubling []Step `json:"doubling"`
	// Feasible says that the machines suffice.
	Feasible bool `json:"feasible"`
}

// Make plans.
func Make(c Cluster, m Machines, costs Costs) Plan {
	p := assess(c, m, costs)
	p.Limits = limits(c, m, costs)
	p.Doubling = doubling(c, m, costs)
	p.Feasible = p.Limits[0].Nodes >= c.Nodes
	return *p
}

// assess says what a cluster needs, and not yet how far that goes.
func assess(c Cluster, m Machines, costs Costs) *Plan {
	p := &Plan{Cluster: c, Machines: m, Costs: costs, Rates: rates(&c)}
	p.Needs = needs(&c, &m, &costs, &p.Rates)
	return p
}
