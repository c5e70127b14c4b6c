package dashboard

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
)

var update = flag.Bool("update", false, "regenerate deploy/grafana/k8s-1m.json")

func TestStoredDashboardIsUpToDate(t *testing.T) {
	path := filepath.Join("..", "..", "..", "deploy", "grafana", "k8s-1m.json")
	generated, err := JSON()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(path, generated, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	stored, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(stored, generated) {
		t.Errorf("the generated dashboard differs from %s (error %v); review the change, then run go test ./internal/cluster/dashboard -update", path, err)
	}
}

// TestPanelsAreDistinctAndDescribed checks that panels do not overlap, have unique IDs, and have a
// description and queries.
func TestPanelsAreDistinctAndDescribed(t *testing.T) {
	text, err := JSON()
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			ID                       int
			Type, Title, Description string
			GridPos                  struct{ X, Y, W, H int }
			Targets                  []struct{ Expr, RefID string }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	titleAt, ids := map[[2]int]string{}, map[int]bool{}
	for _, p := range board.Panels {
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other, exists := titleAt[[2]int{x, y}]; exists || x >= columns {
					t.Fatalf("panel %q at %d, %d overlaps panel %q or exceeds %d columns", p.Title, x, y, other, columns)
				}
				titleAt[[2]int{x, y}] = p.Title
			}
		}
		if ids[p.ID] {
			t.Errorf("panel %q has the ID %d of another panel, want a unique ID", p.Title, p.ID)
		}
		ids[p.ID] = true
		if p.Type == "timeseries" && (p.Description == "" || len(p.Targets) == 0) {
			t.Errorf("panel %q has the description %q and %d queries, want both", p.Title, p.Description, len(p.Targets))
		}
	}
}

// TestExpressionsSelectOneCluster checks that each expression selects one cluster and has balanced
// brackets.
func TestExpressionsSelectOneCluster(t *testing.T) {
	for _, expr := range Expressions() {
		for _, pair := range []string{"()", "{}", "[]"} {
			if strings.Count(expr, pair[:1]) != strings.Count(expr, pair[1:]) {
				t.Errorf("expression %s has unbalanced brackets %s", expr, pair)
			}
		}
		if !strings.Contains(expr, `cluster="$cluster"`) || strings.Contains(expr, "§") {
			t.Errorf("expression %s does not select a cluster or has a placeholder, want %s", expr, `cluster="$cluster"`)
		}
	}
}

// TestGatewayPanelsShowExistingMetrics checks that kube-gateway has the metrics of its panels, and that the
// panels show what it refuses and moves.
func TestGatewayPanelsShowExistingMetrics(t *testing.T) {
	sources, err := filepath.Glob(filepath.Join("..", "..", "..", "crates", "kube-gateway", "src", "metrics", "*.rs"))
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	for _, path := range sources {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		code.Write(text)
	}
	shown := map[string]bool{}
	for _, expr := range Expressions() {
		for _, name := range regexp.MustCompile(`kube_gateway_\w+`).FindAllString(expr, -1) {
			family := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
			shown[family] = true
			if !strings.Contains(code.String(), `"`+family+`"`) {
				t.Errorf("expression %s has the metric %s, which kube-gateway does not have", expr, name)
			}
		}
	}
	for _, name := range []string{"connections_moved_total", "throttled_requests_total", "lists_waiting", "lists_refused_total", "list_reserved_bytes"} {
		if !shown["kube_gateway_"+name] {
			t.Errorf("no panel shows kube_gateway_%s", name)
		}
	}
}

func TestPrometheusGroupsTargetsByJob(t *testing.T) {
	text, err := Prometheus("test", []Target{
		{component.Store, "store", "http://127.0.0.1:1/metrics"},
		{component.RoleAPIServer, "kube-apiserver", "https://127.0.0.1:2/metrics"},
		{component.RoleAPIServer, "kube-apiserver-1", "https://127.0.0.1:3/metrics"},
	}, Credentials{[]byte("ca"), []byte("cert"), []byte("key")})
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Scrapes []struct {
			Job     string `json:"job_name"`
			Scheme  string
			TLS     map[string]string `json:"tls_config"`
			Statics []struct {
				Targets []string
				Labels  map[string]string
			} `json:"static_configs"`
		} `json:"scrape_configs"`
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	if len(config.Scrapes) != 2 {
		t.Fatalf("Prometheus() returned\n%s\nwant 2 scrape configurations", text)
	}
	store, servers := config.Scrapes[0], config.Scrapes[1]
	if store.Scheme != "http" || store.TLS != nil || store.Statics[0].Labels["cluster"] != "test" {
		t.Errorf("configuration of the store = %+v, want HTTP and the label cluster=test", store)
	}
	if servers.Scheme != "https" || servers.TLS["key"] != "key" || len(servers.Statics) != 2 || servers.Statics[1].Targets[0] != "127.0.0.1:3" || servers.Statics[1].Labels["instance"] != "kube-apiserver-1" {
		t.Errorf("configuration of the API servers = %+v, want HTTPS, the key and two targets with their instances", servers)
	}
}
