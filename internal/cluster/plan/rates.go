package plan

// Rates are the rates of operations, per second.
type Rates struct {
	LeaseUpdates  float64 `json:"leaseUpdates"`
	StatusPatches float64 `json:"nodeStatusPatches"`
	// Pods is the rate at which pods are created. It is also the rate at which they are deleted.
	Pods   float64 `json:"pods"`
	Events float64 `json:"events"`
	// Writes is the rate of writes to the store. StoreEvents is the rate of watch events that the
	// store sends to each API server.
	Writes      float64 `json:"writes"`
	StoreEvents float64 `json:"storeEventsToEachAPIServer"`
	// Delivered is the rate of watch events that the API servers send to clients.
	Delivered float64 `json:"delivered"`
}

const (
	// writesOfPod is the number of writes to the store in the life of a pod: create, bind, status patch
	// when initialized, status patch when running, deletion timestamp, last status patch, delete.
	writesOfPod = 7
	// watchersOfPod is the number of clients that watch a pod: its kubelet, the scheduler, the garbage
	// collector, and the controllers that watch all pods, such as those of ReplicaSets and endpoints.
	watchersOfPod = 6
	// watchersOfNode is the number of clients that watch a node: its kubelet, the scheduler and the
	// node controllers.
	watchersOfNode = 5
)

// rates computes the rates of a cluster.
func rates(c *Cluster) Rates {
	nodes := float64(c.Nodes)
	r := Rates{
		LeaseUpdates:  nodes / c.LeaseInterval.Seconds(),
		StatusPatches: nodes / c.StatusInterval.Seconds(),
		Pods:          nodes*c.PodsPerNode/c.PodLife.Seconds() + c.Fill,
	}
	r.Events = r.Pods * c.EventsPerPod
	r.Writes = r.LeaseUpdates + r.StatusPatches + writesOfPod*r.Pods + r.Events
	// API servers do not watch Events in the store, because Events have no watch cache.
	r.StoreEvents = r.Writes - r.Events
	if !c.LeasesCached {
		r.StoreEvents -= r.LeaseUpdates
	}
	r.Delivered = r.LeaseUpdates*float64(c.LeaseWatchers) + r.StatusPatches*watchersOfNode + writesOfPod*r.Pods*watchersOfPod
	return r
}
