package price

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/k8s-1m/k8s-1m/internal/cluster/plan"
)

// Step is one purchase that raises the number of nodes.
type Step struct {
	Change string `json:"change"`
	// Hour and Month are what it costs in addition; less than 0 if it is cheaper.
	Hour  float64 `json:"hour"`
	Month float64 `json:"month"`
	// Nodes is the number of nodes that all machines together carry afterwards, and Binds what limits it then.
	Nodes int    `json:"nodes"`
	Binds string `json:"binds"`
	// NodesEach is the number of additional nodes for each additional unit of the currency an hour; 0 if the
	// purchase costs nothing.
	NodesEach float64 `json:"nodesPerUnitAnHour"`
}

// next returns how many nodes machines carry, the resource that limits it, and the purchases that raise it.
func next(list *List, chosen fleet, c plan.Cluster, m plan.Machines, costs plan.Costs, o Options) (int, string, []Step) {
	now, binds := capacity(chosen, c, m, costs)
	steps := []Step{}
	for _, component := range components {
		g, used := chosen[component]
		if !used {
			continue
		}
		var found []Step
		for _, tried := range larger(list, g, component, o) {
			changed := fleet{}
			for name, group := range chosen {
				changed[name] = group
			}
			changed[component] = tried
			nodes, nextBinds := capacity(changed, c, m, costs)
			if nodes > now {
				found = append(found, step(component, g, tried, o.Purchase, nodes-now, nodes, nextBinds))
			}
		}
		slices.SortStableFunc(found, byNodesForMoney)
		steps = append(steps, found[:min(len(found), 2)]...)
	}
	slices.SortStableFunc(steps, byNodesForMoney)
	return now, binds, steps
}

// larger returns the machines that could replace a group: one more of the same type, unless it is the store, and the
// same number of each type that has more cores or more memory, and not less of the other.
func larger(list *List, g group, component string, o Options) []group {
	var found []group
	if component != plan.Store {
		found = append(found, group{g.machine, g.count + 1})
	}
	others, err := candidates(list, component, Options{Purchase: o.Purchase})
	if err != nil {
		return found
	}
	for _, other := range others {
		if other.Cores >= g.machine.Cores && other.Memory >= g.machine.Memory && other.Cores+other.Memory > g.machine.Cores+g.machine.Memory {
			found = append(found, group{other, g.count})
		}
	}
	return found
}

// step describes the replacement of a group of machines by another.
func step(component string, before, after group, purchase Purchase, more, nodes int, binds string) Step {
	s := Step{Nodes: nodes, Binds: binds, Hour: after.hour(purchase) - before.hour(purchase)}
	s.Month = float64(after.count)*after.machine.Prices[purchase].Month - float64(before.count)*before.machine.Prices[purchase].Month
	if s.Hour > 0 {
		s.NodesEach = float64(more) / s.Hour
	}
	s.Change = fmt.Sprintf("one more %s (%s)", component, after.machine.Type)
	if after.machine.Type != before.machine.Type {
		s.Change = fmt.Sprintf("%s on %s in place of %s", component, after.machine.Type, before.machine.Type)
	}
	return s
}

// byNodesForMoney orders purchases: what costs nothing first, then the most nodes for the money.
func byNodesForMoney(a, b Step) int {
	if free := cmp.Compare(min(a.Hour, 0), min(b.Hour, 0)); free != 0 {
		return free
	}
	return cmp.Compare(b.NodesEach, a.NodesEach)
}

// capacity returns the largest number of nodes for which machines are sufficient, and the resource that limits it.
func capacity(bought fleet, c plan.Cluster, m plan.Machines, costs plan.Costs) (int, string) {
	for component, g := range bought {
		setSize(&m, component, g.machine)
	}
	m.APIServers = bought[plan.APIServer].count
	first := plan.Limits(c, m, costs)[0]
	nodes, binds := first.Nodes, first.Resource
	for _, component := range []string{plan.Gateway, plan.Scheduler} {
		g, used := bought[component]
		if !used {
			continue
		}
		carried := plan.Largest(func(n int) bool {
			c.Nodes = n
			return countOf(plan.Assess(c, m, costs), component) <= g.count
		})
		if carried < nodes {
			nodes, binds = carried, fmt.Sprintf("number of machines of %s", component)
		}
	}
	return nodes, binds
}
