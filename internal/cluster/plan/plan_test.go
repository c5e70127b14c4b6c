package plan

import (
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// TestRatesOfAMillionNodes checks, among others, that a million nodes that renew their Leases every ten
// seconds make 100,000 Lease updates per second.
func TestRatesOfAMillionNodes(t *testing.T) {
	c := DefaultCluster()
	r := rates(&c)
	if r.LeaseUpdates != 100_000 {
		t.Errorf("%v Lease updates per second, want 100,000", r.LeaseUpdates)
	}
	if want := 30e6 / (24 * 3600); math.Abs(r.Pods-want) > 1e-6 {
		t.Errorf("%v pods per second, want %v", r.Pods, want)
	}
	c.LeasesCached = false
	if without := rates(&c); r.StoreEvents-without.StoreEvents != 100_000 || without.Writes != r.Writes {
		t.Errorf("%v watch events per second without a watch cache for Leases, %v with it", without.StoreEvents, r.StoreEvents)
	}
}

func TestCachedWatchEventsGrowWithTheRateUpToAMaximum(t *testing.T) {
	for rate, want := range map[float64]float64{0: 100, 1: 100, 2: 200, 200: 25_600, 100_000: 102_400} {
		if got := cachedWatchEvents(rate); got != want {
			t.Errorf("at %v events per second a watch cache keeps %v events, want %v", rate, got, want)
		}
	}
}

// TestMoreLoadReducesNoNeed checks that more load of any kind reduces no need and raises no limit.
func TestMoreLoadReducesNoNeed(t *testing.T) {
	base := Make(DefaultCluster(), DefaultMachines(), DefaultCosts())
	for name, more := range map[string]func(*Cluster){
		"nodes":       func(c *Cluster) { c.Nodes *= 2 },
		"pods":        func(c *Cluster) { c.PodsPerNode *= 2 },
		"watches":     func(c *Cluster) { c.WatchesPerNode *= 2 },
		"connections": func(c *Cluster) { c.ConnectionsPerNode *= 2 },
		"Leases":      func(c *Cluster) { c.LeaseInterval /= 2 },
		"statuses":    func(c *Cluster) { c.StatusInterval /= 2 },
		"churn":       func(c *Cluster) { c.PodLife /= 2 },
		"filling":     func(c *Cluster) { c.Fill = 1000 },
		"logged":      func(c *Cluster) { c.LeasesLogged = true },
	} {
		c := DefaultCluster()
		more(&c)
		with := Make(c, DefaultMachines(), DefaultCosts())
		checkNotLess(t, name, reflect.ValueOf(base.Needs), reflect.ValueOf(with.Needs), with.Needs.APIServers.Count > base.Needs.APIServers.Count)
		if with.Limits[0].Nodes > base.Limits[0].Nodes {
			t.Errorf("with more load (%s) the first limit is higher: %d nodes instead of %d", name, with.Limits[0].Nodes, base.Limits[0].Nodes)
		}
	}
}

// checkNotLess compares all numbers in two structs. The needs of one API server may be less if there are
// more servers.
func checkNotLess(t *testing.T, name string, base, with reflect.Value, moreServers bool) {
	t.Helper()
	for i := range base.NumField() {
		field := base.Type().Field(i).Name
		switch before, after := base.Field(i), with.Field(i); {
		case before.Kind() == reflect.Struct:
			checkNotLess(t, name, before, after, moreServers)
		case before.Kind() == reflect.Int && after.Int() < before.Int(),
			before.Kind() == reflect.Float64 && after.Float() < before.Float() && !(moreServers && strings.HasSuffix(field, "Each")):
			t.Errorf("with more load (%s) the need %s is less: %v instead of %v", name, field, after, before)
		}
	}
}

// TestFirstLimitIsExact checks that a cluster with as many nodes as the first limit is feasible, and that
// a cluster with 10 % more nodes is not.
func TestFirstLimitIsExact(t *testing.T) {
	m := DefaultMachines()
	p := Make(DefaultCluster(), m, DefaultCosts())
	for i, l := range p.Limits {
		if i > 0 && l.Nodes < p.Limits[i-1].Nodes {
			t.Errorf("the limits are not sorted: %s", l.Resource)
		}
		if l.Used < 0 || l.Resource == "" {
			t.Errorf("a limit has no resource or a negative usage: %+v", l)
		}
	}
	for _, nodes := range []int{p.Limits[0].Nodes, p.Limits[0].Nodes * 11 / 10} {
		c := DefaultCluster()
		c.Nodes = nodes
		if got := Make(c, m, DefaultCosts()).Feasible; got != (nodes == p.Limits[0].Nodes) {
			t.Errorf("the first limit is %d nodes, but Feasible is %v for %d nodes", p.Limits[0].Nodes, got, nodes)
		}
	}
}

// TestDoublingDoublesTheFirstLimit runs with different resources as the first limit.
func TestDoublingDoublesTheFirstLimit(t *testing.T) {
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
			t.Errorf("%s: the plan has no steps that double the first limit of %d nodes", name, p.Limits[0].Nodes)
			continue
		}
		if last := p.Doubling[len(p.Doubling)-1]; last.Nodes < 2*p.Limits[0].Nodes {
			t.Errorf("%s: the first limit is %d nodes, and after the last step only %d: %+v", name, p.Limits[0].Nodes, last.Nodes, p.Doubling)
		}
	}
}

func TestInvalidInputsAreRejected(t *testing.T) {
	for name, change := range map[string]func(*Cluster, *Machines){
		"nodes":    func(c *Cluster, _ *Machines) { c.Nodes = 0 },
		"interval": func(c *Cluster, _ *Machines) { c.LeaseInterval = -time.Second },
		"watches":  func(c *Cluster, _ *Machines) { c.WatchesPerNode = -1 },
		"cores":    func(_ *Cluster, m *Machines) { m.StoreCores = math.NaN() },
		"busy":     func(_ *Cluster, m *Machines) { m.Busy = 1.5 },
	} {
		c, m := DefaultCluster(), DefaultMachines()
		change(&c, &m)
		if c.Validate() == nil && m.Validate() == nil {
			t.Errorf("Validate accepts an invalid value: %s", name)
		}
	}
}

// TestCostsAreWrittenAndRead also checks that the error for a missing cost contains its name.
func TestCostsAreWrittenAndRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "costs.json")
	costs := DefaultCosts()
	if err := costs.Write(path); err != nil {
		t.Fatal(err)
	}
	again, err := ReadCosts(path)
	if err != nil || again != costs {
		t.Errorf("ReadCosts returned %+v, %v; want the costs that were written", again, err)
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
			t.Errorf("ReadCosts of a file with %s returned %v, want an error with %q", text, err, want)
		}
	}
}

func TestPrintContainsRatesAndDoubling(t *testing.T) {
	p := Make(DefaultCluster(), DefaultMachines(), DefaultCosts())
	var text strings.Builder
	p.Print(&text)
	for _, want := range []string{"1,000,000 nodes", "Lease updates", "100,000", "To double the first limit:\n"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the printed plan does not contain %q:\n%s", want, text.String())
		}
	}
}

func TestPrintExplainsThatNoNumberOfServersIsSufficient(t *testing.T) {
	c := DefaultCluster()
	c.Nodes = 50_000_000
	p := Make(c, DefaultMachines(), DefaultCosts())
	var out strings.Builder
	p.Print(&out)
	if text := out.String(); !strings.Contains(text, "no number of servers with 192 cores and 744 GiB is sufficient") || strings.Contains(text, "watches and") {
		t.Errorf("the printed plan does not say that no number of API servers is sufficient:\n%s", text)
	}
}
