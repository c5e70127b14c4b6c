package plan

// GatewayNeeds are the needs of all kube-gateways together; zero if the cluster has none. Every gateway can
// serve every client, so there are as many as the scarcest resource requires.
type GatewayNeeds struct {
	Count int `json:"count"`
	// Cores is the sum of CoresRequests, for Lease updates and all other requests, and CoresEvents, for
	// watch events.
	Cores         float64 `json:"cores"`
	CoresRequests float64 `json:"coresForRequests"`
	CoresEvents   float64 `json:"coresForWatchEvents"`
	// GiB is the memory for the watches and connections of clients.
	GiB     float64 `json:"memoryGiB"`
	OutGbit float64 `json:"networkOutGbit"`
}

// gatewayNeeds computes the needs of the gateways. All traffic between the clients and the API servers
// passes through them, and API servers have as many connections as without gateways.
func gatewayNeeds(m *Machines, cost *GatewayCosts, r *Rates, servers *APIServerNeeds) GatewayNeeds {
	requests := r.LeaseUpdates + r.StatusPatches + writesOfPod*r.Pods + r.Events
	n := GatewayNeeds{
		CoresRequests: micro * requests * cost.RequestMicros,
		CoresEvents:   micro * r.Delivered * cost.DeliverMicros,
		GiB:           (servers.Watches*cost.WatchBytes + servers.Connections*cost.ConnectionBytes) / gib,
		OutGbit:       servers.OutGbitEach * float64(servers.Count),
	}
	n.Cores = n.CoresRequests + n.CoresEvents
	n.Count = int(max(1,
		unitsFor(n.Cores, m.Busy*m.GatewayCores), unitsFor(n.GiB, m.Busy*m.GatewayGiB),
		unitsFor(servers.Connections, float64(m.ConnectionsEach)), unitsFor(n.OutGbit, m.Busy*m.NetworkGbit)))
	return n
}
