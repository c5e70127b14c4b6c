package plan

// Rates are what happens, a second.
type Rates struct {
	LeaseUpdates  float64 `json:"leaseUpdates"`
	StatusPatches float64 `json:"nodeStatusPatches"`
	// Pods that are created; as many are deleted.
	Pods   float64 `json:"pods"`
	Events float64 `json:"events"`
	// Writes to the store, and the events that it tells each API server.
	Writes float64 `json:"writes"`
	Told   float64 `json:"toldToEachAPIServer"`
	// Delivered are events that API servers tell their clients.
	Delivered float64 `json:"delivered"`
}

const (
	// A pod is created, bound, has its status patched when it is initialized and when it
	// runs, is marked as deleted, has a last status, and is deleted.
	writesOfPod = 7
	// Each of that is told to its kubelet, the scheduler and the controllers that watch all
	// pods: of Deployments' ReplicaSets, endpoints, garbage, namespaces, and so on.
	watchersOfPod = 6
	// A node's status goes to its kubelet, the scheduler and the node controllers.
	watchersOfNode = 5
)

func rates(c *Cluster) Rates {
	nodes := float64(c.Nodes)
	r := Rates{
		LeaseUpdates:  nodes / c.LeaseInterval.Seconds(),
		StatusPatches: nodes / c.StatusInterval.Seconds(),
		Pods:          nodes*c.PodsPerNode/c.PodLife.Seconds() + c.Fill,
	}
	r.Events = r.Pods * c.EventsPerPod
	r.Writes = r.LeaseUpdates + r.StatusPatches + writesOfPod*r.Pods + r.Events
	// Events are in no watch cache.
	r.Told = r.Writes - r.Events
	if !c.LeasesCached {
		r.Told -= r.LeaseUpdates
	}
	r.Delivered = r.LeaseUpdates*float64(c.LeaseWatchers) + r.StatusPatches*watchersOfNode + writesOfPod*r.Pods*watchersOfPod
	return r
}
