package plan

import (
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestRatesOfAMillionNodes checks the rates of the default cluster: a million nodes that renew
// their Leases every ten seconds make 100,000 updates per second.
func TestRatesOfAMillionNodes(t *testing.T) {
	c := DefaultCluster()
	r := rates(&c)
	if r.LeaseUpdates != 100_000 {
		t.Errorf("rates() = %v Lease updates per second, want 100000", r.LeaseUpdates)
	}
	if want := 30e6 / (24 * 3600); math.Abs(r.Pods-want) > 1e-6 {
		t.Errorf("rates() = %v pods per second, want %v", r.Pods, want)
	}
	c.LeasesCached = false
	if without := rates(&c); r.StoreEvents-without.StoreEvents != 100_000 || without.Writes != r.Writes {
		t.Errorf("rates() without the Lease cache = %v store events and %v writes, want %v and %v", without.StoreEvents, without.Writes, r.StoreEvents-100_000, r.Writes)
	}
}

func TestHistoryGrowsWithRateUpToMaximum(t *testing.T) {
	for rate, want := range map[float64]float64{0: 100, 1: 100, 2: 200, 200: 25_600, 100_000: 102_400} {
		if got := cachedWatchEvents(rate); got != want {
			t.Errorf("cachedWatchEvents(%v) = %v versions, want %v", rate, got, want)
		}
	}
}

// TestMoreLoadNeverReducesNeeds checks that more load of any kind reduces no need and raises no
// limit.
func TestMoreLoadNeverReducesNeeds(t *testing.T) {
	base := Make(DefaultCluster(), DefaultMachines(), DefaultCosts())
	for name, increase := range map[string]func(*Cluster){
		"nodes":          func(c *Cluster) { c.Nodes *= 2 },
		"pods":           func(c *Cluster) { c.PodsPerNode *= 2 },
		"watches":        func(c *Cluster) { c.WatchesPerNode *= 2 },
		"connections":    func(c *Cluster) { c.ConnectionsPerNode *= 2 },
		"Lease updates":  func(c *Cluster) { c.LeaseInterval /= 2 },
		"status updates": func(c *Cluster) { c.StatusInterval /= 2 },
		"pod churn":      func(c *Cluster) { c.PodLife /= 2 },
		"pod creations":  func(c *Cluster) { c.Fill = 1000 },
		"logged Leases":  func(c *Cluster) { c.LeasesLogged = true },
	} {
		c := DefaultCluster()
		increase(&c)
		with := Make(c, DefaultMachines(), DefaultCosts())
		checkNotLess(t, name, reflect.ValueOf(base.Needs), reflect.ValueOf(with.Needs), with.Needs.APIServers.Count > base.Needs.APIServers.Count)
		if with.Limits[0].Nodes > base.Limits[0].Nodes {
			t.Errorf("first limit with more %s = %d nodes, want at most %d", name, with.Limits[0].Nodes, base.Limits[0].Nodes)
		}
	}
}

// TestGatewaysCarryAllTraffic checks that gateways need CPU for each request and watch event, that their
// number follows the scarcest resource, and that the other components need the same as without them.
func TestGatewaysCarryAllTraffic(t *testing.T) {
	c, m, costs := DefaultCluster(), DefaultMachines(), DefaultCosts()
	without := Make(c, m, costs)
	if without.Needs.Gateways != (GatewayNeeds{}) {
		t.Errorf("needs without gateways = %+v, want none", without.Needs.Gateways)
	}
	c.Gateway = true
	p := Make(c, m, costs)
	n := p.Needs.Gateways
	if p.Needs.APIServers != without.Needs.APIServers || p.Needs.Store != without.Needs.Store {
		t.Errorf("needs of the API servers and the store = %+v, want %+v as without gateways", p.Needs, without.Needs)
	}
	if leases := 1e-6 * p.Rates.LeaseUpdates * costs.Gateway.RequestMicros; n.CoresRequests <= leases || n.Cores != n.CoresRequests+n.CoresEvents {
		t.Errorf("needs of the gateways = %+v, want more than %v cores for requests, and the sum", n, leases)
	}
	if wanted := 1e6 * (18*costs.Gateway.WatchBytes + 2*costs.Gateway.ConnectionBytes) / (1 << 30); math.Abs(n.GiB-wanted) > 1e-6 {
		t.Errorf("needs of the gateways = %+v, want %v GiB", n, wanted)
	}
	for name, scarce := range map[string]func(*Machines){
		"cores":       func(m *Machines) { m.GatewayCores = n.Cores / m.Busy / 50 },
		"memory":      func(m *Machines) { m.GatewayGiB = n.GiB / m.Busy / 50 },
		"connections": func(m *Machines) { m.ConnectionsEach = 40_000 },
	} {
		machines := m
		scarce(&machines)
		if got := Make(c, machines, costs).Needs.Gateways.Count; got != 50 && got != 51 {
			t.Errorf("number of gateways with scarce %s = %d, want 50", name, got)
		}
	}
	var text strings.Builder
	p.Print(&text)
	if !strings.Contains(text.String(), "kube-gateways") {
		t.Errorf("Print() wrote\n%s\nwant the gateways in it", &text)
	}
}

// checkNotLess checks that no number in a struct is less than in the base. The needs of each API
// server (fields that end with Each) may be less if there are more servers.
func checkNotLess(t *testing.T, name string, base, with reflect.Value, moreServers bool) {
	t.Helper()
	for i := range base.NumField() {
		field := base.Type().Field(i).Name
		switch before, after := base.Field(i), with.Field(i); {
		case before.Kind() == reflect.Struct:
			checkNotLess(t, name, before, after, moreServers)
		case before.Kind() == reflect.Int && after.Int() < before.Int(),
			before.Kind() == reflect.Float64 && after.Float() < before.Float() && !(moreServers && strings.HasSuffix(field, "Each")):
			t.Errorf("%s with more %s = %v, want at least %v", field, name, after, before)
		}
	}
}

// TestFirstLimitIsTight checks that as many nodes as the first limit are feasible, and that 10 %
// more are not.
func TestFirstLimitIsTight(t *testing.T) {
	m := DefaultMachines()
	p := Make(DefaultCluster(), m, DefaultCosts())
	for i, l := range p.Limits {
		if i > 0 && l.Nodes < p.Limits[i-1].Nodes {
			t.Errorf("limit %s of %d nodes follows one of %d nodes, want limits in ascending order", l.Resource, l.Nodes, p.Limits[i-1].Nodes)
		}
		if l.Used < 0 || l.Resource == "" {
			t.Errorf("limit = %+v, want a resource and no negative use", l)
		}
	}
	for _, nodes := range []int{p.Limits[0].Nodes, p.Limits[0].Nodes * 11 / 10} {
		c := DefaultCluster()
		c.Nodes = nodes
		if got := Make(c, m, DefaultCosts()).Feasible; got != (nodes == p.Limits[0].Nodes) {
			t.Errorf("Make() with %d nodes = feasible %v, want %v", nodes, got, nodes == p.Limits[0].Nodes)
		}
	}
}

// TestStepsDoubleFirstLimit checks clusters in which different resources are the first limit.
func TestStepsDoubleFirstLimit(t *testing.T) {
	for name, scarce := range map[string]func(*Cluster, *Machines){
		"default":          func(*Cluster, *Machines) {},
		"small API server": func(_ *Cluster, m *Machines) { m.APIServerCores, m.APIServerGiB = 2, 16 },
		"little memory":    func(_ *Cluster, m *Machines) { m.StoreGiB, m.APIServerGiB = 8, 32 },
		"slow disk":        func(c *Cluster, m *Machines) { m.DiskMBps, c.LeasesLogged = 1, true },
		"slow network":     func(_ *Cluster, m *Machines) { m.NetworkGbit = 0.1 },
		"many pods":        func(c *Cluster, _ *Machines) { c.PodsPerNode, c.PodLife = 110, time.Minute },
	} {
		c, m := DefaultCluster(), DefaultMachines()
		scarce(&c, &m)
		p := Make(c, m, DefaultCosts())
		if len(p.Doubling) == 0 {
			t.Errorf("%s: Make() = no steps to double %d nodes, want at least one", name, p.Limits[0].Nodes)
			continue
		}
		if last := p.Doubling[len(p.Doubling)-1]; last.Nodes < 2*p.Limits[0].Nodes {
			t.Errorf("%s: the last step of %+v allows %d nodes, want at least %d", name, p.Doubling, last.Nodes, 2*p.Limits[0].Nodes)
		}
	}
}

func TestInvalidInputsAreRejected(t *testing.T) {
	for name, change := range map[string]func(*Cluster, *Machines){
		"no nodes":                   func(c *Cluster, _ *Machines) { c.Nodes = 0 },
		"negative Lease interval":    func(c *Cluster, _ *Machines) { c.LeaseInterval = -time.Second },
		"negative number of watches": func(c *Cluster, _ *Machines) { c.WatchesPerNode = -1 },
		"cores are NaN":              func(_ *Cluster, m *Machines) { m.StoreCores = math.NaN() },
		"utilisation above 1":        func(_ *Cluster, m *Machines) { m.Busy = 1.5 },
	} {
		c, m := DefaultCluster(), DefaultMachines()
		change(&c, &m)
		if c.Validate() == nil && m.Validate() == nil {
			t.Errorf("%s: Validate() of the cluster and of the machines succeeded, want an error", name)
		}
	}
}

// TestCostsAreWrittenAndRead also checks the errors of incomplete and malformed files.
func TestCostsAreWrittenAndRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "costs.json")
	costs := DefaultCosts()
	if err := costs.Write(path); err != nil {
		t.Fatal(err)
	}
	got, err := ReadCosts(path)
	if err != nil || got != costs {
		t.Errorf("ReadCosts() = %+v, %v, want the written costs %+v", got, err, costs)
	}
	// An older k1m wrote no costs of the gateway.
	old := regexp.MustCompile(`(?s)"gateway": \{.*?\},`).ReplaceAll(storedCosts, nil)
	if err := os.WriteFile(path, old, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadCosts(path); err != nil || got != costs || len(old) == len(storedCosts) {
		t.Errorf("ReadCosts() of a file without costs of the gateway = %+v, %v, want the default costs", got, err)
	}
	for text, want := range map[string]string{
		`{"store": {}}`: "store.updateMicros",
		`{"shop": {}}`:  "unknown field",
		`{`:             "unexpected EOF",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadCosts(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ReadCosts() of %s = %v, want an error with %q", text, err, want)
		}
	}
}

func TestPrintContainsRatesAndDoubling(t *testing.T) {
	p := Make(DefaultCluster(), DefaultMachines(), DefaultCosts())
	var text strings.Builder
	p.Print(&text)
	for _, want := range []string{"1,000,000 nodes", "Lease updates", "100,000", "To double the first limit:\n"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("Print() wrote\n%s\nwant %q in it", &text, want)
		}
	}
}

func TestPrintExplainsInfeasiblePlan(t *testing.T) {
	c := DefaultCluster()
	c.Nodes = 50_000_000
	p := Make(c, DefaultMachines(), DefaultCosts())
	var out strings.Builder
	p.Print(&out)
	want := "no number of servers with 192 cores and 744 GiB is sufficient"
	if text := out.String(); !strings.Contains(text, want) || strings.Contains(text, "watches and") {
		t.Errorf("Print() wrote\n%s\nwant %q in it, and no needs of API servers", text, want)
	}
}
