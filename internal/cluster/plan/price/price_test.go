package price

import (
	"math"
	"strings"
	"testing"

	"github.com/k8s-1m/k8s-1m/internal/cluster/plan"
)

func options() Options { return Options{Purchase: OnDemand, Clients: SameZone} }

// cluster returns a cluster that one watch cache can serve, with gateways.
func cluster(nodes int) plan.Cluster {
	c := plan.DefaultCluster()
	c.Nodes, c.LeasesCached, c.Gateway = nodes, false, true
	return c
}

func priced(t *testing.T, list *List, c plan.Cluster, o Options) (*plan.Plan, *Report) {
	t.Helper()
	p, r, err := Plan(list, c, plan.DefaultMachines(), plan.DefaultCosts(), o)
	if err != nil {
		t.Fatal(err)
	}
	return p, r
}

func google(t *testing.T) *List {
	t.Helper()
	list, err := Read(examples + "google-cloud.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestChosenMachinesAreSufficientAndCheapest compares the price of the chosen machines with that of all other
// combinations of types.
func TestChosenMachinesAreSufficientAndCheapest(t *testing.T) {
	list := google(t)
	list.Machines = list.Machines[:6]
	for _, nodes := range []int{100, 20_000, 200_000} {
		c := cluster(nodes)
		p, r := priced(t, list, c, options())
		for _, component := range components {
			if short := p.Shortage(component); short != "" {
				t.Errorf("%d nodes: %s lacks %s, want sufficient machines", nodes, component, short)
			}
		}
		chosen := 0.0
		for _, item := range r.Items {
			if item.Unit == unitMachines {
				chosen += item.Prices[OnDemand].Hour
			}
		}
		if cheapest := cheapestOfAll(list, c); math.Abs(chosen-cheapest) > 1e-9 {
			t.Errorf("%d nodes: machines cost %v an hour, want %v", nodes, chosen, cheapest)
		}
	}
}

// cheapestOfAll returns the lowest price of an hour of all combinations of machine types.
func cheapestOfAll(list *List, c plan.Cluster) float64 {
	lowest := math.Inf(1)
	for _, server := range list.Machines {
		for _, store := range list.Machines {
			for _, gateway := range list.Machines {
				for _, scheduler := range list.Machines {
					m := plan.DefaultMachines()
					tried := fleet{plan.APIServer: {server, 0}, plan.Store: {store, 0}, plan.Gateway: {gateway, 0}, plan.Scheduler: {scheduler, 0}}
					for component, g := range tried {
						setSize(&m, component, g.machine)
					}
					p, sum, sufficient := plan.Assess(c, m, plan.DefaultCosts()), 0.0, true
					for component, g := range tried {
						sum += group{g.machine, countOf(p, component)}.hour(OnDemand)
						sufficient = sufficient && p.Shortage(component) == ""
					}
					if sufficient {
						lowest = min(lowest, sum)
					}
				}
			}
		}
	}
	return lowest
}

func TestTotalIsTheSumOfAllItems(t *testing.T) {
	o := options()
	o.Clients = Internet
	p, r := priced(t, google(t), cluster(100_000), o)
	for _, purchase := range Purchases {
		sum := Rate{}
		for _, item := range r.Items {
			sum.Hour, sum.Month = sum.Hour+item.Prices[purchase].Hour, sum.Month+item.Prices[purchase].Month
		}
		if got := r.Total[purchase]; math.Abs(got.Hour-sum.Hour)+math.Abs(got.Month-sum.Month) > 1e-6 || got.Hour == 0 {
			t.Errorf("total %s = %+v, want %+v", purchase, got, sum)
		}
	}
	servers := r.Items[1]
	machine, _ := google(t).Find(strings.Fields(servers.What)[0])
	if want := float64(p.Needs.APIServers.Count) * machine.Prices[Spot].Hour; servers.Component != plan.APIServer || servers.Prices[Spot].Hour != want {
		t.Errorf("spot price of the API servers = %+v, want %v", servers, want)
	}
}

// TestMissingPricesAreNotZero checks that what a list has no price for is named, and that a sum which would need it
// is missing.
func TestMissingPricesAreNotZero(t *testing.T) {
	list := readList(t, validList)
	list.Disk, list.Traffic = nil, nil
	delete(list.Machines[1].Prices, Spot)
	_, r := priced(t, list, cluster(1000), options())
	if _, has := r.Total[Spot]; has {
		t.Errorf("total = %+v, want none for spot machines", r.Total)
	}
	notes := strings.Join(r.Notes, "\n")
	for _, want := range []string{"no price of disks", "no price of traffic in the same zone"} {
		if !strings.Contains(notes, want) {
			t.Errorf("notes = %s, want %q", notes, want)
		}
	}
	for _, item := range r.Items {
		if item.Unit != unitMachines {
			t.Errorf("item without a price = %+v, want only machines", item)
		}
	}
}

func TestTiersOfTraffic(t *testing.T) {
	tiers := []Tier{{1024, 0.12}, {10240, 0.11}, {0, 0.08}}
	for amount, want := range map[float64]float64{0: 0, 100: 12, 1024: 122.88, 2024: 122.88 + 110, 20240: 122.88 + 9216*0.11 + 10000*0.08} {
		if got := tiered(tiers, amount); math.Abs(got-want) > 1e-9 {
			t.Errorf("tiered(%v) = %v, want %v", amount, got, want)
		}
	}
	traffic := &Traffic{Internet: tiers}
	if got, _ := traffic.cost(Internet, 150, 50); got != 12 {
		t.Errorf("cost() of 150 GiB of which 50 are included = %v, want 12", got)
	}
	if _, priced := traffic.cost(OtherZones, 1, 0); priced {
		t.Error("cost() to other zones without a price = priced, want not priced")
	}
}

// TestNextPurchasesCarryMoreNodes checks each purchase by a plan on the machines after it.
func TestNextPurchasesCarryMoreNodes(t *testing.T) {
	list, c := google(t), cluster(50_000)
	_, r := priced(t, list, c, options())
	if r.Carries < c.Nodes || len(r.Next) == 0 {
		t.Fatalf("machines carry %d nodes, and %d purchases carry more, want at least %d nodes and a purchase", r.Carries, len(r.Next), c.Nodes)
	}
	for i, s := range r.Next {
		if s.Nodes <= r.Carries || s.Binds == "" {
			t.Errorf("purchase %+v, want more than %d nodes", s, r.Carries)
		}
		if want := float64(s.Nodes-r.Carries) / s.Hour; s.Hour > 0 && math.Abs(s.NodesEach-want) > 1e-6 {
			t.Errorf("purchase %+v: nodes for the money = %v, want %v", s, s.NodesEach, want)
		}
		if i > 0 && byNodesForMoney(r.Next[i-1], s) > 0 {
			t.Errorf("purchase %+v follows %+v, want the most nodes for the money first", s, r.Next[i-1])
		}
	}
}

// TestMoreMachinesCarryMoreNodes checks the number of nodes that machines carry: as many are feasible, more are not.
func TestMoreMachinesCarryMoreNodes(t *testing.T) {
	list := google(t)
	machine, _ := list.Find("c4d-standard-32")
	bought := fleet{}
	for _, component := range components {
		bought[component] = group{machine, 1}
	}
	bought[plan.APIServer] = group{machine, 3}
	m := plan.DefaultMachines()
	for component, g := range bought {
		setSize(&m, component, g.machine)
	}
	nodes, binds := capacity(bought, cluster(1), m, plan.DefaultCosts())
	if !strings.Contains(binds, "API server") {
		t.Errorf("limit = %s, want one of the API servers", binds)
	}
	m.APIServers = 3
	for _, n := range []int{nodes, nodes + 1} {
		if feasible := plan.Make(cluster(n), m, plan.DefaultCosts()).Feasible; feasible != (n == nodes) {
			t.Errorf("%d nodes are feasible: %v, want %v, because the machines carry %d", n, feasible, n == nodes, nodes)
		}
	}
}

// TestLimitsOfSoftwareAreNotForSale checks a cluster in which the watch cache of Leases is the first limit.
func TestLimitsOfSoftwareAreNotForSale(t *testing.T) {
	c := cluster(500_000)
	c.LeasesCached = true
	p, r := priced(t, google(t), c, options())
	if p.Feasible || len(r.Next) > 0 || !strings.Contains(r.Binds, "watch cache") {
		t.Errorf("plan is feasible: %v, purchases %+v, limit %s, want none, because the watch cache is the limit", p.Feasible, r.Next, r.Binds)
	}
}

func TestTypesOfTheBuyerAreUsed(t *testing.T) {
	o := options()
	o.Types = map[string]string{plan.Store: "c4d-highmem-64"}
	_, r := priced(t, google(t), cluster(1000), o)
	if !strings.HasPrefix(r.Items[0].What, "c4d-highmem-64 ") {
		t.Errorf("machine of the store = %s, want c4d-highmem-64", r.Items[0].What)
	}
	for _, c := range []struct {
		change func(*Options)
		want   string
	}{
		{func(o *Options) { o.Types[plan.Store] = "c5" }, `machine type "c5" of store is not in the price list`},
		{func(o *Options) { o.Types[plan.Store] = "small"; o.Purchase = Spot }, `machine type "small" of store has no spot price`},
		{func(o *Options) { o.Purchase = Reserved1Y }, "no machine type for kube-apiserver with a reserved-1y price"},
		{func(*Options) {}, "no machine type is sufficient as kube-apiserver"},
	} {
		o := options()
		o.Types = map[string]string{}
		c.change(&o)
		list := readList(t, validList)
		_, _, err := Plan(list, cluster(100_000_000), plan.DefaultMachines(), plan.DefaultCosts(), o)
		if o.Types[plan.Store] != "" {
			_, _, err = Plan(list, cluster(1000), plan.DefaultMachines(), plan.DefaultCosts(), o)
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Plan() with %+v = %v, want %q", o, err, c.want)
		}
	}
}

// TestPublishedClusterIsPriced checks the price of the published million-node cluster, computed by hand.
func TestPublishedClusterIsPriced(t *testing.T) {
	list := google(t)
	existing, err := ReadExisting(examples + "million-node-cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, r := priced(t, list, cluster(100_000), options())
	if err := r.Compare(list, existing); err != nil {
		t.Fatal(err)
	}
	want := 0.996178 + 5*9.071563 + 285*1.271713 + 7*1.21216
	if got := r.Existing.Total[OnDemand].Hour; math.Abs(got-want) > 1e-3 {
		t.Errorf("price of the published cluster = %v an hour, want %v", got, want)
	}
	// kwok is no component of a plan, and the published cluster had no gateways.
	if got := r.Existing.Planned.Existing[OnDemand].Hour; math.Abs(got-(want-7*1.21216)) > 1e-3 {
		t.Errorf("price of its components that the plan has = %v an hour, want %v", got, want-7*1.21216)
	}
	var text strings.Builder
	r.Print(&text)
	if !strings.Contains(text.String(), "Its report says of the price: nothing") {
		t.Errorf("Print() wrote\n%s\nwant what the report says of the price", &text)
	}
	existing.Machines[2].Type = "c5"
	if err := r.Compare(list, existing); err == nil || !strings.Contains(err.Error(), `machines[2].type: "c5" is not in the price list`) {
		t.Errorf("Compare() with an unknown type = %v, want an error", err)
	}
}

// TestPageHasTheBillByComponent also checks that text of a price list cannot be read as HTML.
func TestPageHasTheBillByComponent(t *testing.T) {
	list := google(t)
	list.Provider = "<script>alert(1)</script>"
	p, r := priced(t, list, cluster(100_000), options())
	var out strings.Builder
	if err := r.WritePage(&out, p); err != nil {
		t.Fatal(err)
	}
	page := out.String()
	for _, want := range append([]string{"&lt;script&gt;", "100,000 nodes", money(r.Total[OnDemand].Month), "LIMITS"}, components...) {
		if !strings.Contains(page, want) {
			t.Errorf("page without %q", want)
		}
	}
	if strings.Contains(page, "<script") {
		t.Error("page has a script of the price list")
	}
	percent := 0.0
	for _, b := range r.bars() {
		percent += b.Percent
	}
	if math.Abs(percent-100) > 1e-6 {
		t.Errorf("components have %v %% of the bill in total, want 100", percent)
	}
}

func TestMoney(t *testing.T) {
	for want, amount := range map[string]float64{"0.00": 0, "1.50": 1.5, "999.99": 999.99, "1,000.00": 1000, "-12,345.68": -12345.678, "1,234,567.00": 1234567} {
		if got := money(amount); got != want {
			t.Errorf("money(%v) = %s, want %s", amount, got, want)
		}
	}
}
