package plan

import "math"

// Needs are the resources that the components of a cluster need.
type Needs struct {
	Store      StoreNeeds     `json:"store"`
	APIServers APIServerNeeds `json:"apiServers"`
	Gateways   GatewayNeeds   `json:"gateways"`
	Scheduler  SchedulerNeeds `json:"scheduler"`
}

// StoreNeeds are the needs of the store.
type StoreNeeds struct {
	Cores float64 `json:"cores"`
	// ThreadShare is the fraction of one core that the thread that applies all writes needs.
	ThreadShare float64 `json:"threadShare"`
	GiB         float64 `json:"memoryGiB"`
	// SnapshotGiB is the size of a snapshot on disk, and LogMBps the write rate of the log.
	SnapshotGiB float64 `json:"snapshotGiB"`
	LogMBps     float64 `json:"logMBps"`
	OutGbit     float64 `json:"networkOutGbit"`
}

// APIServerNeeds are the needs of the API servers. Fields ending in Each are for one server.
type APIServerNeeds struct {
	Count int `json:"count"`
	// Cores is the sum over all API servers. CoresClients is the part for requests and watches of
	// clients, which is divided among the servers. CoresEach is what every server needs in addition
	// to receive the watch events of the store.
	Cores        float64 `json:"cores"`
	CoresClients float64 `json:"coresForClients"`
	CoresEach    float64 `json:"coresEachForStoreEvents"`
	// GiBEach is the memory of one server. It includes GiBCaches, the memory of its watch caches.
	GiBEach   float64 `json:"memoryGiBEach"`
	GiBCaches float64 `json:"memoryGiBForCaches"`
	// BusiestCache is the rate, in watch events per second, of the busiest watch cache.
	BusiestCache float64 `json:"busiestCacheEventsPerSecond"`
	Watches      float64 `json:"watches"`
	Connections  float64 `json:"connections"`
	OutGbitEach  float64 `json:"networkOutGbitEach"`
}

// SchedulerNeeds are the needs of all scheduler replicas together.
type SchedulerNeeds struct {
	Replicas int     `json:"replicas"`
	Cores    float64 `json:"cores"`
	GiB      float64 `json:"memoryGiB"`
	// ThreadShare is the fraction of one core that the thread that schedules all pods needs.
	// FillSeconds is the minimum time in which this thread schedules all pods of the cluster.
	ThreadShare float64 `json:"threadShare"`
	FillSeconds float64 `json:"fillSeconds"`
}

const (
	micro = 1e-6
	gib   = 1 << 30
)

// needs computes the needs of all components.
func needs(c *Cluster, m *Machines, costs *Costs, r *Rates) Needs {
	n := Needs{APIServers: apiServerNeeds(c, m, &costs.APIServer, &costs.Store, r)}
	// The store is planned for at most the maximum number of API servers. If a plan needs more API
	// servers, their number must be the limit, and not the store.
	n.Store = storeNeeds(c, &costs.Store, r, min(n.APIServers.Count, m.APIServers))
	if c.Gateway {
		n.Gateways = gatewayNeeds(m, &costs.Gateway, r, &n.APIServers)
	}
	n.Scheduler = schedulerNeeds(c, m, &costs.Scheduler, r)
	return n
}

func storeNeeds(c *Cluster, cost *StoreCosts, r *Rates, apiServers int) StoreNeeds {
	nodes, pods, events := float64(c.Nodes), float64(c.Nodes)*c.PodsPerNode, r.Events*c.EventLife.Seconds()
	logged := r.StatusPatches*cost.NodeWire + writesOfPod*r.Pods*cost.PodWire + r.Events*cost.EventWire
	if c.LeasesLogged {
		logged += r.LeaseUpdates * cost.LeaseWire
	}
	read := 0.0
	if !c.LeasesCached {
		// Without a watch cache, an API server reads a Lease from the store before each update.
		read = r.LeaseUpdates
	}
	return StoreNeeds{
		Cores:       micro * (r.Writes*cost.UpdateMicros + read*cost.ReadMicros + r.StoreEvents*float64(apiServers)*cost.SendWatchEventMicros),
		ThreadShare: micro * r.Writes * cost.ApplyMicros,
		GiB:         (nodes*(cost.NodeBytes+cost.LeaseBytes) + pods*cost.PodBytes + events*cost.EventBytes) / gib,
		SnapshotGiB: (nodes*(cost.NodeWire+cost.LeaseWire) + pods*cost.PodWire + events*cost.EventWire) / gib,
		LogMBps:     logged / 1e6,
		OutGbit:     8e-9 * storeEventBytes(c, cost, r) * float64(apiServers),
	}
}

// storeEventBytes returns the rate, in bytes per second, of the store's watch events to one API server.
func storeEventBytes(c *Cluster, cost *StoreCosts, r *Rates) float64 {
	sent := r.StatusPatches*cost.NodeWire + writesOfPod*r.Pods*cost.PodWire
	if c.LeasesCached {
		sent += r.LeaseUpdates * cost.LeaseWire
	}
	return sent
}

func apiServerNeeds(c *Cluster, m *Machines, cost *APIServerCosts, store *StoreCosts, r *Rates) APIServerNeeds {
	nodes, pods := float64(c.Nodes), float64(c.Nodes)*c.PodsPerNode
	n := APIServerNeeds{
		CoresClients: micro * (r.LeaseUpdates*cost.LeaseMicros + r.StatusPatches*cost.StatusMicros +
			r.Pods*cost.PodMicros + r.Events*cost.CreateEventMicros + r.Delivered*cost.DeliverMicros),
		CoresEach:    micro * r.StoreEvents * cost.ReceiveWatchEventMicros,
		BusiestCache: max(r.StatusPatches, writesOfPod*r.Pods),
		Watches:      nodes * c.WatchesPerNode,
		Connections:  nodes * c.ConnectionsPerNode,
	}
	if c.LeasesCached {
		n.BusiestCache = max(n.BusiestCache, r.LeaseUpdates)
	}
	cached := cost.BaseBytes + (nodes+cachedWatchEvents(r.StatusPatches))*cost.NodeBytes + (pods+cachedWatchEvents(writesOfPod*r.Pods))*cost.PodBytes
	if c.LeasesCached {
		cached += (nodes + cachedWatchEvents(r.LeaseUpdates)) * cost.LeaseBytes
	}
	clients := n.Watches*cost.WatchBytes + n.Connections*cost.ConnectionBytes
	// The number of servers is the largest of those that CPU, memory and connections require. The CPU
	// time for receiving watch events and the memory of the caches are not available for clients.
	count := unitsFor(n.CoresClients, m.Busy*m.APIServerCores-n.CoresEach)
	count = max(count, unitsFor(clients, m.Busy*m.APIServerGiB*gib-cached))
	count = max(count, unitsFor(n.Connections, float64(m.ConnectionsEach)))
	n.Count = int(min(max(count, 1), infiniteServers))
	n.Cores = n.CoresClients + float64(n.Count)*n.CoresEach
	n.GiBCaches = cached / gib
	n.GiBEach = (cached + clients/float64(n.Count)) / gib
	n.OutGbitEach = 8e-9 / float64(n.Count) * (r.LeaseUpdates*(1+float64(c.LeaseWatchers))*store.LeaseWire +
		r.StatusPatches*(1+watchersOfNode)*store.NodeWire + writesOfPod*r.Pods*(1+watchersOfPod)*store.PodWire)
	return n
}

// infiniteServers stands for an infinite number of API servers: no number is sufficient, because the
// watch events and the caches of a server leave no capacity for clients.
const infiniteServers = 1_000_000

// cachedWatchEvents returns how many watch events a watch cache keeps at a rate of events per second. The
// cache keeps the events of 75 seconds, in a ring buffer that doubles its size up to a maximum
// (defaultUpperBoundCapacity in k8s.io/apiserver).
func cachedWatchEvents(rate float64) float64 {
	const seconds, initial, maximum = 75, 100, 100 * 1024
	capacity := float64(initial)
	for capacity < rate*seconds && capacity < maximum {
		capacity *= 2
	}
	return capacity
}

// unitsFor returns how many units of this size are needed for an amount; infinity if the size is not
// greater than 0.
func unitsFor(amount, size float64) float64 {
	if size <= 0 {
		return math.Inf(1)
	}
	return math.Ceil(amount / size)
}

func schedulerNeeds(c *Cluster, m *Machines, cost *SchedulerCosts, r *Rates) SchedulerNeeds {
	nodes, pods := float64(c.Nodes), float64(c.Nodes)*c.PodsPerNode
	n := SchedulerNeeds{
		GiB:         (nodes*cost.NodeBytes + pods*cost.PodBytes) / gib,
		ThreadShare: r.Pods * cost.CycleMicros * micro,
		FillSeconds: pods * cost.CycleMicros * micro,
	}
	n.Replicas = int(min(max(unitsFor(n.GiB, m.Busy*m.SchedulerGiB), unitsFor(r.Pods*cost.PodMicros*micro, m.Busy*m.SchedulerCores), 1), 1e6))
	each := cost.PodMicros
	if n.Replicas > 1 {
		each += cost.ReplicaMicros
	}
	n.Cores = r.Pods * each * micro
	return n
}
