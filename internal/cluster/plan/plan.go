// Package plan computes the resources that a cluster of a given size needs. [Make] takes the
// [Cluster], the available [Machines] and the measured [Costs], and returns a [Plan]: [Rates] of
// operations, [Needs] of each component, a [Limit] for each resource, and the changes that double
// the maximum number of nodes. The package accesses no running cluster.
//
// Invariants: every need is a sum of costs, each multiplied by a rate or by a number of objects. Costs
// that were not measured are not included. More nodes, pods or watches never reduce a need, except the
// needs of one API server if the number of API servers grows.
//
// The package does not model latency, the CPU time of garbage collection, resources other than nodes,
// Leases, pods and Events, or controllers other than the scheduler.
package plan

// Plan is the result of [Make].
type Plan struct {
	Cluster  Cluster  `json:"cluster"`
	Machines Machines `json:"machines"`
	Costs    Costs    `json:"costs"`
	Rates    Rates    `json:"rates"`
	Needs    Needs    `json:"needs"`
	// Limits are the limits of all resources, the smallest first.
	Limits []Limit `json:"limits"`
	// Doubling is a sequence of changes that together double the first limit.
	Doubling []Step `json:"doubling"`
	// Feasible reports whether the machines are sufficient for the cluster.
	Feasible bool `json:"feasible"`
}

// Make computes the plan of a cluster.
func Make(c Cluster, m Machines, costs Costs) Plan {
	p := Assess(c, m, costs)
	p.Limits = Limits(c, m, costs)
	p.Doubling = doublingSteps(c, m, costs)
	p.Feasible = p.Limits[0].Nodes >= c.Nodes
	return *p
}

// Assess computes only the rates and the needs of a plan.
func Assess(c Cluster, m Machines, costs Costs) *Plan {
	p := &Plan{Cluster: c, Machines: m, Costs: costs, Rates: rates(&c)}
	p.Needs = needs(&c, &m, &costs, &p.Rates)
	return p
}
