package price

import (
	"fmt"
	"slices"
	"strings"

	"github.com/k8s-1m/k8s-1m/internal/cluster/plan"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// Options are the choices of the buyer.
type Options struct {
	// Purchase is the way to pay for which the cheapest machines are chosen.
	Purchase Purchase
	// Clients says where the clients of the API servers or gateways are: in the same zone, in other zones of
	// the region, or on the internet.
	Clients string
	// Types are the machine types of components that the buyer has chosen, by component.
	Types map[string]string
}

// Where clients are: the values of [Options.Clients].
const (
	SameZone   = "zone"
	OtherZones = "zones"
	Internet   = "internet"
)

// Validate returns a usage error if an option is invalid.
func (o *Options) Validate() error {
	if !slices.Contains(Purchases, o.Purchase) {
		return usage.Errorf("--purchase %q: no such purchase; choose from %s", o.Purchase, purchaseNames())
	}
	if !slices.Contains([]string{SameZone, OtherZones, Internet}, o.Clients) {
		return usage.Errorf("--clients %q: no such place; choose zone, zones or internet", o.Clients)
	}
	return nil
}

// fleet is the set of machines of a control plane: a type and a number for each component.
type fleet map[string]group

// group is the machines of one component.
type group struct {
	machine Machine
	count   int
}

// setSize sets the size of a component's machines in the input of a plan.
func setSize(m *plan.Machines, component string, machine Machine) {
	switch component {
	case plan.Store:
		m.StoreCores, m.StoreGiB = machine.Cores, machine.Memory
	case plan.APIServer:
		m.APIServerCores, m.APIServerGiB = machine.Cores, machine.Memory
	case plan.Gateway:
		m.GatewayCores, m.GatewayGiB = machine.Cores, machine.Memory
	case plan.Scheduler:
		m.SchedulerCores, m.SchedulerGiB = machine.Cores, machine.Memory
	}
}

// countOf returns how many machines of a component a plan needs. The plan has one store.
func countOf(p *plan.Plan, component string) int {
	switch component {
	case plan.APIServer:
		return p.Needs.APIServers.Count
	case plan.Gateway:
		return p.Needs.Gateways.Count
	case plan.Scheduler:
		return p.Needs.Scheduler.Replicas
	}
	return 1
}

// choose returns the cheapest machines that are sufficient for a cluster, and sets their sizes in m. API servers
// are first, because the store needs more if there are more of them.
func choose(list *List, c plan.Cluster, m *plan.Machines, costs plan.Costs, o Options) (fleet, error) {
	chosen := fleet{}
	for _, component := range []string{plan.APIServer, plan.Store, plan.Gateway, plan.Scheduler} {
		if component == plan.Gateway && !c.Gateway {
			continue
		}
		types, err := candidates(list, component, o)
		if err != nil {
			return nil, err
		}
		best, shortage := cheapest(types, component, c, *m, costs, o.Purchase)
		if best.count == 0 {
			return nil, fmt.Errorf("price list of %s: no machine type is sufficient as %s of %d nodes: the %s is too small; "+
				"add larger types to the list or plan fewer nodes", list.Provider, component, c.Nodes, shortage)
		}
		chosen[component] = best
		setSize(m, component, best.machine)
	}
	return chosen, nil
}

// candidates returns the machine types that may be used for a component: the type that the buyer chose, or
// those that have a price.
func candidates(list *List, component string, o Options) ([]Machine, error) {
	if name := o.Types[component]; name != "" {
		machine, found := list.Find(name)
		if !found {
			return nil, usage.Errorf("machine type %q of %s is not in the price list; choose from %s", name, component, strings.Join(list.Types(), ", "))
		}
		if _, priced := machine.Prices[o.Purchase]; !priced {
			return nil, usage.Errorf("machine type %q of %s has no %s price; choose another --purchase or type", name, component, o.Purchase)
		}
		return []Machine{machine}, nil
	}
	var found []Machine
	for _, machine := range list.Machines {
		if _, priced := machine.Prices[o.Purchase]; priced && (machine.For == nil || slices.Contains(machine.For, component)) {
			found = append(found, machine)
		}
	}
	if len(found) == 0 {
		return nil, usage.Errorf("the price list has no machine type for %s with a %s price; choose another --purchase", component, o.Purchase)
	}
	return found, nil
}

// cheapest returns the cheapest sufficient machines for a component, or the resource that the largest
// candidate lacks.
func cheapest(candidates []Machine, component string, c plan.Cluster, m plan.Machines, costs plan.Costs, purchase Purchase) (best group, shortage string) {
	largest := 0.0
	for _, machine := range candidates {
		setSize(&m, component, machine)
		p := plan.Assess(c, m, costs)
		if short := p.Shortage(component); short != "" {
			if machine.Cores*machine.Memory > largest {
				largest, shortage = machine.Cores*machine.Memory, short
			}
			continue
		}
		tried := group{machine, countOf(p, component)}
		if best.count == 0 || tried.hour(purchase) < best.hour(purchase) {
			best = tried
		}
	}
	return best, shortage
}

// hour returns the price of all machines of the group for an hour.
func (g group) hour(purchase Purchase) float64 {
	return float64(g.count) * g.machine.Prices[purchase].Hour
}
