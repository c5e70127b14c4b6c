package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/dashboard"
)

var (
	metricInExpr = regexp.MustCompile(`([a-z_][a-z0-9_]*)\{cluster="\$cluster"(?:,job="([a-z-]+)")?`)
	metricOnPage = regexp.MustCompile(`(?m)^([a-z_][a-z0-9_]*)[{ ]`)
)

// absentUntilFirstEvent are metrics that do not exist before the event that they count.
var absentUntilFirstEvent = map[string]bool{"scheduler_index_fallbacks_total": true}

// TestDashboardMetricsExist scrapes the targets of the Prometheus configuration with its credentials, and
// checks that every metric in the dashboard exists on a target.
func TestDashboardMetricsExist(t *testing.T) {
	w := newWorkspace(t)
	const name = "dashboard"
	t.Cleanup(func() { w.k1m(t, "down", "--name", name) })
	w.succeed(t, "up", "--name", name, "--nodes", "5", "--store", storeKind(), "--scheduler", "dist-scheduler", "--gateway")
	w.succeed(t, "pods", "create", "--name", name, "--count", "3")

	checkTop(t, w, name)
	pages := readPages(t, w.succeed(t, "metrics", "prometheus", "--name", name).stdout)
	for _, expr := range dashboard.Expressions() {
		found := metricInExpr.FindAllStringSubmatch(expr, -1)
		if len(found) == 0 {
			t.Errorf("the expression has no metric: %s", expr)
		}
		for _, match := range found {
			metric, job := match[1], match[2]
			if absentUntilFirstEvent[metric] || storeKind() != "mem_etcd" && job == component.Store {
				continue
			}
			if !pages[job][metric] {
				t.Errorf("no target of the job %[2]q has the metric %[1]s", metric, job)
			}
		}
	}
}

// checkTop checks that `k1m top` lists every process with its CPU usage, as text and as JSON.
func checkTop(t *testing.T, w *workspace, name string) {
	t.Helper()
	page := w.succeed(t, "top", "--name", name, "--once").stdout
	for _, part := range []string{"CPU (cores)", "memory (MiB)", "kube-apiserver", "kube-gateway: watches by API server", "store", "scheduler", "kwok"} {
		if !strings.Contains(page, part) {
			t.Errorf("k1m top does not print %q:\n%s", part, page)
		}
	}
	var blocks []struct {
		Title string
		Lines []struct {
			Name string
			Now  float64
		}
	}
	must(t, json.Unmarshal([]byte(w.succeed(t, "top", "--name", name, "-o", "json").stdout), &blocks))
	if len(blocks) < 2 || blocks[0].Title != "CPU" || len(blocks[1].Lines) < 5 {
		t.Errorf("k1m top -o json returned %+v; want at least two blocks: first CPU, and at least 5 lines in the second", blocks)
	}
}

// readPages scrapes all targets of a Prometheus configuration and returns the names of the metrics by job.
// The job "" contains the metrics of all jobs.
func readPages(t *testing.T, text string) map[string]map[string]bool {
	t.Helper()
	var config struct {
		Scrapes []struct {
			Job     string `json:"job_name"`
			Scheme  string
			TLS     map[string]string            `json:"tls_config"`
			Statics []struct{ Targets []string } `json:"static_configs"`
		} `json:"scrape_configs"`
	}
	must(t, yaml.Unmarshal([]byte(text), &config))
	pages := map[string]map[string]bool{"": {}}
	for _, scrape := range config.Scrapes {
		pages[scrape.Job] = map[string]bool{}
		client := &http.Client{}
		if scrape.Scheme == "https" {
			pair, err := tls.X509KeyPair([]byte(scrape.TLS["cert"]), []byte(scrape.TLS["key"]))
			must(t, err)
			client.Transport = &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: pool(t, scrape.TLS["ca"])}}
		}
		for _, static := range scrape.Statics {
			response, err := client.Get(scrape.Scheme + "://" + static.Targets[0] + "/metrics")
			must(t, err)
			body, err := io.ReadAll(response.Body)
			response.Body.Close()
			must(t, err)
			if response.StatusCode != http.StatusOK {
				t.Fatalf("a target of the job %s returned %s: %s", scrape.Job, response.Status, strings.TrimSpace(string(body)))
			}
			for _, match := range metricOnPage.FindAllSubmatch(body, -1) {
				pages[scrape.Job][string(match[1])], pages[""][string(match[1])] = true, true
			}
		}
	}
	return pages
}

func pool(t *testing.T, pem string) *x509.CertPool {
	t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(pem)) {
		t.Fatal("the CA certificate in the Prometheus configuration is invalid")
	}
	return pool
}
