package deploy

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// notOurs are words with an underscore in expressions that are functions, or metrics of the client libraries.
var notOurs = map[string]bool{"predict_linear": true, "process_resident_memory_bytes": true}

var metricName = regexp.MustCompile(`[a-z]+(_[a-z0-9]+)+`)

// TestAlerts checks that the alerts of Prometheus have all fields, and that a program has each metric in them.
func TestAlerts(t *testing.T) {
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr, For string
				Annotations      map[string]string
			}
		}
	}
	read(t, "../../deploy/grafana/alerts.yaml", &file)
	sources := metricSources(t)
	rules, names := 0, map[string]bool{}
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			rules++
			if rule.Alert == "" || names[rule.Alert] || rule.Annotations["summary"] == "" {
				t.Errorf("alert %q: it needs a name of its own and a summary", rule.Alert)
			}
			names[rule.Alert] = true
			for _, name := range metricName.FindAllString(rule.Expr, -1) {
				// Kubernetes' programs have the subsystem of a metric apart from its name.
				_, suffix, _ := strings.Cut(name, "_")
				if !notOurs[name] && !strings.Contains(sources, name) && !strings.Contains(sources, `"`+suffix+`"`) {
					t.Errorf("alert %s: no program has the metric %s", rule.Alert, name)
				}
			}
		}
	}
	if rules < 10 {
		t.Errorf("%d alerts were checked, want at least 10", rules)
	}
}

// metricSources returns the source code that defines the metrics of the programs.
func metricSources(t *testing.T) string {
	t.Helper()
	module, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	must(t, err)
	var all strings.Builder
	for _, directory := range []string{"../../crates", "../../internal/scheduler", filepath.Join(strings.TrimSpace(string(module)), "pkg/scheduler/metrics")} {
		must(t, filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.Contains(path, "metric") || (filepath.Ext(path) != ".rs" && filepath.Ext(path) != ".go") {
				return err
			}
			text, err := os.ReadFile(path)
			all.Write(text)
			return err
		}))
	}
	return all.String()
}
