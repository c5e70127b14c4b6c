package gateway

import (
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/kube"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

func TestBypassOptions(t *testing.T) {
	for line, valid := range map[string]bool{
		"": true, "--rates 1000": true, "--rates 10,1": true, "--rates 0": false, "--rates 1.5": false, "--rates ,": false,
		"--variants cached": true, "--variants served-uncached,cached": true, "--variants none": false, "--variants cached,cached": false, "--variants ": false,
		"--timeout 0s": false,
	} {
		o := defaultBypassOptions()
		flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
		o.AddFlags(flags)
		if err := flags.Parse(slices.DeleteFunc(strings.SplitN(line, " ", 2), func(word string) bool { return word == "" && line == "" })); err != nil {
			t.Fatal(err)
		}
		if err := o.Validate(); (err == nil) != valid || err != nil && !errors.Is(err, usage.Err) {
			t.Errorf("%q: error %v, want valid: %v", line, err, valid)
		}
	}
	o := defaultBypassOptions()
	o.Rates.Text = "1000, 10,1000"
	if rates, err := o.rates(); err != nil || !slices.Equal(rates, []int{10, 1000}) {
		t.Errorf("rates() = %v, %v, want each once, in ascending order", rates, err)
	}
}

// The measurement without renewals must not make nodes NotReady.
func TestBypassPauseIsShorterThanTheGracePeriod(t *testing.T) {
	o := defaultBypassOptions()
	o.Nodes, o.Duration.D = experiment.Fixed(10_000), 15*time.Second
	for rate, valid := range map[int]bool{1000: true, 400: true, 399: false} {
		if err := o.checkPause(rate); (err == nil) != valid {
			t.Errorf("checkPause(%d) = %v, want valid: %v", rate, err, valid)
		}
	}
}

// The help lists the variants that exist.
func TestBypassHelp(t *testing.T) {
	for _, name := range variantNames() {
		if !strings.Contains(leaseBypass.Long, "\n  "+name+" ") {
			t.Errorf("the help does not list the variant %s", name)
		}
	}
}

func TestBypassSettings(t *testing.T) {
	for _, v := range variants {
		settings := v.settings("gateway.yaml", "https://127.0.0.1:1")
		settings.Complete()
		if err := settings.Validate(); err != nil {
			t.Errorf("the settings of %s are invalid: %v", v.name, err)
		}
		if uncached := slices.Contains(settings.APIServerArgs, "watch-cache-sizes=leases.coordination.k8s.io#0"); uncached != v.uncached {
			t.Errorf("%s: the watch cache is off: %v, want %v", v.name, uncached, v.uncached)
		}
		if served := *settings.Gateway && settings.GatewayConfig != ""; served != v.served {
			t.Errorf("%s: with a gateway: %v, want %v", v.name, served, v.served)
		}
		if !slices.Contains(settings.KwokArgs, "node-lease-duration-seconds=0") {
			t.Errorf("%s: kwok renews Leases", v.name)
		}
	}
}

// kwok must not find the nodes, and nothing else must change them after they were created.
func TestBypassNodesAreThoseOfKubelets(t *testing.T) {
	nodes, err := bulk.NewNodes(bulk.DefaultNodeShape())
	if err != nil {
		t.Fatal(err)
	}
	node := registered(nodes.Make("node-1", 1))
	if _, found := node.Annotations[kube.SimulatedNodeAnnotation]; found || !bulk.NodeReady(node) {
		t.Errorf("node %+v, want one that is Ready and not kwok's", node)
	}
	if other := nodes.Make("node-2", 2); other.Annotations[kube.SimulatedNodeAnnotation] == "" || len(other.Status.Conditions) > 0 || other.Status.Phase == corev1.NodeRunning {
		t.Errorf("registered() has changed the template: %+v", other)
	}
}

func TestBypassCostIsWithoutThatOfTheIdleCluster(t *testing.T) {
	idle := &bypassCost{cores: map[string]float64{component.Store: 0.01, component.RoleAPIServer: 0.1, component.RoleGateway: 0.02}}
	cost := bypassCost{perSecond: 1000, cores: map[string]float64{component.Store: 0.03, component.RoleAPIServer: 0.15, component.RoleGateway: 0.01}}
	cost.subtract(idle)
	want := map[string]float64{component.Store: 20, component.RoleAPIServer: 50, component.ControllerManager: 0, component.RoleGateway: 0}
	for role, micros := range want {
		if got := cost.micros[role]; math.Abs(got-micros) > 1e-6 {
			t.Errorf("%s: %v µs, want %v", role, got, micros)
		}
	}
	if math.Abs(cost.total()-70) > 1e-6 {
		t.Errorf("total() = %v, want 70", cost.total())
	}
	cost.setCounts(bypassCounts{revision: 100, events: 10, served: 5, passes: 3, passTime: 1}, bypassCounts{revision: 300, events: 210, served: 105, passes: 5, passTime: 1.5, notReady: 4})
	if cost.events != 1 || cost.served != 0.5 || cost.pass != 250 || cost.notReady != 4 {
		t.Errorf("setCounts() = %+v, want 1 and 0.5 events for a renewal, 250 ms and 4 nodes", cost)
	}
}

// A row has a cell for each column, also without renewals and without a gateway.
func TestBypassRows(t *testing.T) {
	for _, v := range variants {
		r := &bypassRun{bench: &bench{Run: &experiment.Run{Result: &experiment.Result{}}}, figures: map[string][]experiment.Figure{}, own: &bypassOptions{Variants: variantNames()}}
		r.table = r.Result.Table("test", bypassColumns()...)
		s := &bypassStep{bypassRun: r, variant: v}
		idle := bypassCost{cores: map[string]float64{component.Store: 0.5}}
		s.addRow(idle)
		cost := bypassCost{cores: map[string]float64{component.Store: 0.7}, perSecond: 1000}
		cost.subtract(&idle)
		s.addRow(cost)
		s.addLines(cost, 1000)
		if got := r.table.Rows[1][2].(float64); math.Abs(got-200) > 1e-6 || r.table.Rows[0][2] != "" {
			t.Errorf("%s: rows %v, want 200 µs of the store in the second", v.name, r.table.Rows)
		}
		if gateway := r.table.Rows[1][5]; (gateway != "") != v.served {
			t.Errorf("%s: cell of kube-gateway %v", v.name, gateway)
		}
		r.summarize()
	}
}

func TestPagesAddUpSamples(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if request.URL.Path != "/metrics" {
			http.NotFound(w, request)
			return
		}
		_, _ = w.Write([]byte("events{resource=\"leases\",x=\"1\"} 3\nevents{resource=\"leases\",x=\"2\"} 4\nevents{resource=\"pods\"} 5\n"))
	}))
	defer server.Close()
	p := &pages{client: server.Client(), endpoints: []component.MetricsEndpoint{
		{Role: component.RoleAPIServer, URL: server.URL + "/metrics"}, {Role: component.RoleAPIServer, URL: server.URL + "/metrics"},
		{Role: component.RoleGateway, URL: server.URL + "/absent"},
	}}
	if got, ok := p.sum(t.Context(), component.RoleAPIServer, "events", `resource="leases"`); got != 14 || !ok {
		t.Errorf("sum() = %v, %v, want 7 of each of two API servers", got, ok)
	}
	for role, name := range map[string]string{component.RoleAPIServer: "absent", component.RoleGateway: "events", component.Store: "events"} {
		if got, ok := p.sum(t.Context(), role, name, ""); got != 0 || ok {
			t.Errorf("sum() of %s of %s = %v, %v, want none", name, role, got, ok)
		}
	}
}
