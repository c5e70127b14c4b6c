package price

import (
	"fmt"
	"math"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/plan"
)

// Report is the result of [Plan].
type Report struct {
	Provider string `json:"provider"`
	Region   string `json:"region,omitempty"`
	Currency string `json:"currency"`
	// Date is the day of the prices, as 2026-07-30.
	Date     string   `json:"date"`
	Source   string   `json:"source"`
	Purchase Purchase `json:"purchase"`
	Items    []Item   `json:"items"`
	// Total is the sum of all items, for each way to pay for which all machines have a price.
	Total map[Purchase]Rate `json:"total"`
	// Carries is the largest number of nodes for which the machines are sufficient. Binds is the resource that
	// limits it, and Next what more money would buy, the most nodes for the money first.
	Carries int      `json:"carriesNodes"`
	Binds   string   `json:"binds"`
	Next    []Step   `json:"next"`
	Notes   []string `json:"notes,omitempty"`
	// Existing is the comparison with an existing cluster; nil without one.
	Existing *Comparison `json:"existing,omitempty"`
}

// Item is one row of a bill.
type Item struct {
	Component string `json:"component"`
	What      string `json:"what"`
	// Quantity is the number of machines, or the amount in Unit.
	Quantity float64 `json:"quantity"`
	Unit     string  `json:"unit"`
	// Prices are those of the whole quantity, by way to pay. A way is missing if the list has no price for it.
	Prices map[Purchase]Rate `json:"prices"`
}

// Units of items.
const (
	unitMachines = "machines"
	unitGiB      = "GiB"
	unitTraffic  = "GiB a month"
)

// systemDisk is the disk space that a machine needs for its system and programs, in GiB.
const systemDisk = 20

// Plan returns the plan of a cluster on the cheapest machines of a price list that are sufficient, and its
// price. The cores and the memory of machines are those of the chosen types; m has the other limits.
func Plan(list *List, c plan.Cluster, m plan.Machines, costs plan.Costs, o Options) (*plan.Plan, *Report, error) {
	chosen, err := choose(list, c, &m, costs, o)
	if err != nil {
		return nil, nil, err
	}
	p := plan.Make(c, m, costs)
	r := &Report{
		Provider: list.Provider, Region: list.Region, Currency: list.Currency,
		Date: list.Date.Format(time.DateOnly), Source: list.Source, Purchase: o.Purchase,
	}
	r.addMachines(chosen)
	r.addDisks(list, chosen, &p)
	r.addTraffic(list, chosen, &p, o.Clients)
	r.Total = total(r.Items)
	r.addNotes(list, chosen, o)
	r.Carries, r.Binds, r.Next = next(list, chosen, c, m, costs, o)
	return &p, r, nil
}

// addMachines adds the machines of all components.
func (r *Report) addMachines(chosen fleet) {
	for _, component := range components {
		if g, used := chosen[component]; used {
			r.Items = append(r.Items, g.item(component))
		}
	}
}

// item returns the row of a bill for the machines of a component.
func (g group) item(component string) Item {
	prices := map[Purchase]Rate{}
	for purchase, rate := range g.machine.Prices {
		prices[purchase] = Rate{Hour: float64(g.count) * rate.Hour, Month: float64(g.count) * rate.Month}
	}
	what := fmt.Sprintf("%s (%g cores, %g GiB)", g.machine.Type, g.machine.Cores, g.machine.Memory)
	return Item{Component: component, What: what, Quantity: float64(g.count), Unit: unitMachines, Prices: prices}
}

// addDisks adds the disks that the prices of the machines do not include.
func (r *Report) addDisks(list *List, chosen fleet, p *plan.Plan) {
	for _, component := range components {
		g := chosen[component]
		each := float64(systemDisk)
		if component == plan.Store {
			each += storeDisk(p)
		}
		missing := float64(g.count) * math.Ceil(max(0, each-g.machine.Disk))
		if missing == 0 {
			continue
		}
		if list.Disk == nil {
			r.Notes = append(r.Notes, fmt.Sprintf("The list has no price of disks: %.0f GiB for %s are not in the bill.", missing, component))
			continue
		}
		r.Items = append(r.Items, Item{component, "disk " + list.Disk.Kind, missing, unitGiB, everyPurchase(missing * list.Disk.GiBMonth)})
	}
}

// storeDisk returns the disk space of the store, in GiB. mem_etcd keeps two snapshots, and the log after the
// older one; it writes a snapshot when the log has the size of the last snapshot, or 256 MiB. While it writes one,
// there are three snapshots.
func storeDisk(p *plan.Plan) float64 {
	const smallestLog = 0.25
	snapshot := p.Needs.Store.SnapshotGiB
	return 3*snapshot + 2*max(snapshot, smallestLog)
}

// addTraffic adds the traffic of a month: watch events of the store to API servers, which are in its zone, and
// answers and watch events to clients.
func (r *Report) addTraffic(list *List, chosen fleet, p *plan.Plan, clients string) {
	servers := float64(p.Needs.APIServers.Count)
	r.addTrafficOf(list, plan.Store, "traffic to API servers", SameZone, giBOfMonth(p.Needs.Store.OutGbit), 0)
	toClients := giBOfMonth(p.Needs.APIServers.OutGbitEach * servers)
	edge := plan.APIServer
	if p.Cluster.Gateway {
		r.addTrafficOf(list, plan.APIServer, "traffic to gateways", SameZone, toClients, 0)
		edge, toClients = plan.Gateway, giBOfMonth(p.Needs.Gateways.OutGbit)
	}
	included := float64(chosen[edge].count) * chosen[edge].machine.Traffic
	r.addTrafficOf(list, edge, "traffic to clients", clients, toClients, included)
}

// addTrafficOf adds the traffic of a component to a place. included is the traffic to the internet that the prices of
// its machines include.
func (r *Report) addTrafficOf(list *List, component, what, place string, amount, included float64) {
	cost, priced := list.Traffic.cost(place, amount, included)
	if !priced {
		r.Notes = append(r.Notes, fmt.Sprintf("The list has no price of traffic %s: %.0f GiB a month of %s are not in the bill.", places[place], amount, what))
		return
	}
	r.Items = append(r.Items, Item{component, what + " " + places[place], amount, unitTraffic, everyPurchase(cost)})
}

// places describes where traffic goes.
var places = map[string]string{SameZone: "in the same zone", OtherZones: "in other zones", Internet: "on the internet"}

// cost returns the price of a month's traffic to a place; false if the list does not have it.
func (t *Traffic) cost(place string, amount, included float64) (float64, bool) {
	if t == nil {
		return 0, false
	}
	switch {
	case place == SameZone && t.Zone != nil:
		return amount * *t.Zone, true
	case place == OtherZones && t.Zones != nil:
		return amount * *t.Zones, true
	case place == Internet && len(t.Internet) > 0:
		return tiered(t.Internet, max(0, amount-included)), true
	}
	return 0, false
}

// tiered returns the price of an amount of traffic.
func tiered(tiers []Tier, amount float64) float64 {
	cost, start := 0.0, 0.0
	for _, tier := range tiers {
		end := tier.UpToGiB
		if end == 0 {
			end = math.Inf(1)
		}
		cost += max(0, min(amount, end)-start) * tier.GiB
		start = end
	}
	return cost
}

// giBOfMonth converts a rate in Gbit/s to the amount of a month, in GiB.
func giBOfMonth(gbit float64) float64 {
	return gbit * 1e9 / 8 * HoursOfMonth * 3600 / (1 << 30)
}

// everyPurchase returns a price of a month that does not depend on how machines are paid.
func everyPurchase(month float64) map[Purchase]Rate {
	prices := map[Purchase]Rate{}
	for _, purchase := range Purchases {
		prices[purchase] = Rate{Hour: month / HoursOfMonth, Month: month}
	}
	return prices
}

// total returns the sums of all items. A way to pay for which an item has no price has no total.
func total(items []Item) map[Purchase]Rate {
	sums := map[Purchase]Rate{}
	for _, purchase := range Purchases {
		sum, complete := Rate{}, true
		for _, item := range items {
			rate, priced := item.Prices[purchase]
			sum, complete = Rate{sum.Hour + rate.Hour, sum.Month + rate.Month}, complete && priced
		}
		if complete {
			sums[purchase] = sum
		}
	}
	return sums
}

// addNotes adds the notes of the list, and what is special about the chosen machines.
func (r *Report) addNotes(list *List, chosen fleet, o Options) {
	if o.Purchase == Spot {
		r.Notes = append(r.Notes, "The provider can stop spot machines at any time. A store on one loses its memory; only what its log on a disk "+
			"that outlives the machine has is kept.")
	}
	for _, component := range components {
		if m := chosen[component].machine; m.Source != "" {
			r.Notes = append(r.Notes, fmt.Sprintf("Price of %s: %s%s.", m.Type, m.Source, dated(m.Date)))
		}
	}
	r.Notes = append(r.Notes, list.Notes...)
}

// dated formats a date that may be missing.
func dated(date time.Time) string {
	if date.IsZero() {
		return ""
	}
	return ", " + date.Format(time.DateOnly)
}
