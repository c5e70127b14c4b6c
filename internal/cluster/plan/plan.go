// Package plan computes the resources that a cluster of a given size needs. [Make] takes the
// [Cluster], the available [Machines] and the measured [Costs], and returns a [Plan]: [Rates] of
// operations, [Needs] of each component, a [Limit] of each resource, and the changes that double
// the size of the cluster. The package accesses no running cluster.
//
// Invariants: all needs are rates multiplied by costs. Costs that were not measured are not
// included. More nodes, pods or watches never reduce a need, apart from the needs of one API
// server when their number grows.
//
// Not modelled: latency, the CPU time of garbage collection, resources other than nodes, Leases,
// pods and Events, and controllers other than the scheduler.
package plan

// Plan is the result of [Make].
type Plan struct {
	Cluster  Cluster  `json:"cluster"`
	Machines Machines `json:"machines"`
	Costs    Costs    `json:"costs"`
	Rates    Rates    `json:"rates"`
	Needs    Needs    `json:"needs"`
	// Limits has the limit of each resource, the tightest first.
	Limits []Limit `json:"limits"`
	// Doubling is the sequence of changes that allow twice as many nodes as the first limit.
	Doubling []Step `json:"doubling"`
	// Feasible reports whether the machines are sufficient for the cluster.
	Feasible bool `json:"feasible"`
}

// Make computes the plan of a cluster.
func Make(c Cluster, m Machines, costs Costs) Plan {
	p := assess(c, m, costs)
	p.Limits = limits(c, m, costs)
	p.Doubling = doubling(c, m, costs)
	p.Feasible = p.Limits[0].Nodes >= c.Nodes
	return *p
}

// assess computes rates and needs only.
func assess(c Cluster, m Machines, costs Costs) *Plan {
	p := &Plan{Cluster: c, Machines: m, Costs: costs, Rates: rates(&c)}
	p.Needs = needs(&c, &m, &costs, &p.Rates)
	return p
}
