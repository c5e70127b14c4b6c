package plan

import "math"

// Needs are what the parts take.
type Needs struct {
	Store      StoreNeeds     `json:"store"`
	APIServers APIServerNeeds `json:"apiServers"`
	Scheduler  SchedulerNeeds `json:"scheduler"`
}

// StoreNeeds are those of the one store.
type StoreNeeds struct {
	Cores  float64 `json:"cores"`
	Thread float64 `json:"threadShare"` // of one core, for what all writes pass
	GiB    float64 `json:"memoryGiB"`
	// SnapshotGiB is what a snapshot takes on disk, and LogMBps what is logged.
	SnapshotGiB float64 `json:"snapshotGiB"`
	LogMBps     float64 `json:"logMBps"`
	OutGbit     float64 `json:"networkOutGbit"`
}

// APIServerNeeds are those of all API servers, and of each.
type APIServerNeeds struct {
	Count int `json:"count"`
	// Cores that all of them take, and what of that is for requests and watches of clients,
	// which is shared, and for what each has to take from the store itself.
	Cores        float64 `json:"cores"`
	CoresClients float64 `json:"coresForClients"`
	CoresEach    float64 `json:"coresEachForTheStoresEvents"`
	// GiBEach is what each takes, of which GiBCaches is for the objects that each caches.
	GiBEach   float64 `json:"memoryGiBEach"`
	GiBCaches float64 `json:"memoryGiBForCaches"`
	// BusiestCache is how many events a second the busiest watch cache takes.
	BusiestCache float64 `json:"busiestCacheEventsPerSecond"`
	Watches      float64 `json:"watches"`
	Connections  float64 `json:"connections"`
	OutGbitEach  float64 `json:"networkOutGbitEach"`
}

// SchedulerNeeds are those of the scheduler's replicas.
type SchedulerNeeds struct {
	Replicas int     `json:"replicas"`
	Cores    float64 `json:"cores"`
	GiB      float64 `json:"memoryGiB"`
	// Thread is the share of a core that the cycle takes that all pods pass, and FillSeconds
	// how long it takes for all pods, at the least.
	Thread      float64 `json:"threadShare"`
	FillSeconds float64 `json:"fillSeconds"`
}

const (
	micro = 1e-6
	gib   = 1 << 30
)

func needs(c *Cluster, m *Machines, costs *Costs, r *Rates) Needs {
	n := Needs{APIServers: apiServerNeeds(c, m, &costs.APIServer, &costs.Store, r)}
	// More than there may be would tell of what cannot be as if it were the store's limit.
	n.Store = storeNeeds(c, &costs.Store, r, min(n.APIServers.Count, m.APIServers))
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
		// An API server that does not have the Lease asks for it before it writes.
		read = r.LeaseUpdates
	}
	return StoreNeeds{
		Cores:       micro * (r.Writes*cost.UpdateMicros + read*cost.ReadMicros + r.Told*float64(apiServers)*cost.EventMicros),
		Thread:      micro * r.Writes * cost.ApplyMicros,
		GiB:         (nodes*(cost.NodeBytes+cost.LeaseBytes) + pods*cost.PodBytes + events*cost.EventBytes) / gib,
		SnapshotGiB: (nodes*(cost.NodeWire+cost.LeaseWire) + pods*cost.PodWire + events*cost.EventWire) / gib,
		LogMBps:     logged / 1e6,
		OutGbit:     8e-9 * toldBytes(c, cost, r) * float64(apiServers),
	}
}

// toldBytes is what one API server is told a second.
func toldBytes(c *Cluster, cost *StoreCosts, r *Rates) float64 {
	told := r.StatusPatches*cost.NodeWire + writesOfPod*r.Pods*cost.PodWire
	if c.LeasesCached {
		told += r.LeaseUpdates * cost.LeaseWire
	}
	return told
}

func apiServerNeeds(c *Cluster, m *Machines, cost *APIServerCosts, store *StoreCosts, r *Rates) APIServerNeeds {
	nodes, pods := float64(c.Nodes), float64(c.Nodes)*c.PodsPerNode
	n := APIServerNeeds{
		CoresClients: micro * (r.LeaseUpdates*cost.LeaseMicros + r.StatusPatches*cost.StatusMicros +
			r.Pods*cost.PodMicros + r.Events*cost.EventMicros + r.Delivered*cost.DeliverMicros),
		CoresEach:    micro * r.Told * cost.ToldMicros,
		BusiestCache: max(r.StatusPatches, writesOfPod*r.Pods),
		Watches:      nodes * c.WatchesPerNode,
		Connections:  nodes * c.ConnectionsPerNode,
	}
	if c.LeasesCached {
		n.BusiestCache = max(n.BusiestCache, r.LeaseUpdates)
	}
	cached := cost.BaseBytes + (nodes+history(r.StatusPatches))*cost.NodeBytes + (pods+history(writesOfPod*r.Pods))*cost.PodBytes
	if c.LeasesCached {
		cached += (nodes + history(r.LeaseUpdates)) * cost.LeaseBytes
	}
	clients := n.Watches*cost.WatchBytes + n.Connections*cost.ConnectionBytes
	// As many as CPU, memory and connections each make necessary. What each of them has to
	// do anyway leaves that much less for clients.
	count := share(n.CoresClients, m.Busy*m.APIServerCores-n.CoresEach)
	count = max(count, share(clients, m.Busy*m.APIServerGiB*gib-cached))
	count = max(count, share(n.Connections, float64(m.ConnectionsEach)))
	n.Count = int(min(max(count, 1), endlessServers))
	n.Cores = n.CoresClients + float64(n.Count)*n.CoresEach
	n.GiBCaches = cached / gib
	n.GiBEach = (cached + clients/float64(n.Count)) / gib
	n.OutGbitEach = 8e-9 / float64(n.Count) * (r.LeaseUpdates*(1+float64(c.LeaseWatchers))*store.LeaseWire +
		r.StatusPatches*(1+watchersOfNode)*store.NodeWire + writesOfPod*r.Pods*(1+watchersOfPod)*store.PodWire)
	return n
}

// endlessServers stand for no number being enough: each has no room for clients beside what it
// has to do and keep anyway.
const endlessServers = 1_000_000

// history is how many versions of objects a watch cache keeps at so many events a second:
// those of 75 seconds, in a ring that is doubled up to an end (defaultUpperBoundCapacity in
// k8s.io/apiserver).
func history(rate float64) float64 {
	const seconds, first, last = 75, 100, 100 * 1024
	room := float64(first)
	for room < rate*seconds && room < last {
		room *= 2
	}
	return room
}

// share is how many of a size take an amount; without end if there is no room in one.
func share(amount, size float64) float64 {
	if size <= 0 {
		return math.Inf(1)
	}
	return math.Ceil(amount / size)
}

func schedulerNeeds(c *Cluster, m *Machines, cost *SchedulerCosts, r *Rates) SchedulerNeeds {
	nodes, pods := float64(c.Nodes), float64(c.Nodes)*c.PodsPerNode
	n := SchedulerNeeds{
		GiB:         (nodes*cost.NodeBytes + pods*cost.PodBytes) / gib,
		Thread:      r.Pods * cost.CycleMicros * micro,
		FillSeconds: pods * cost.CycleMicros * micro,
	}
	n.Replicas = int(min(max(share(n.GiB, m.Busy*m.SchedulerGiB), share(r.Pods*cost.PodMicros*micro, m.Busy*m.SchedulerCores), 1), 1e6))
	each := cost.PodMicros
	if n.Replicas > 1 {
		each += cost.ReplicaMicros
	}
	n.Cores = r.Pods * each * micro
	return n
}
