package controllermanager

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

func readFile(t *testing.T, elements ...string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(elements...))
	must(t, err)
	return string(content)
}

// help returns the flags of a program with their defaults and explanations.
func help(t *testing.T, bin, program string) (flags []string) {
	t.Helper()
	out, err := exec.Command(filepath.Join(bin, program), "--help").Output()
	must(t, err)
	_, text, found := strings.Cut(string(out), "flags:\n")
	if !found {
		t.Fatalf("the help of %s has no flags", program)
	}
	for line := range strings.Lines(strings.ReplaceAll(text, program, cold)) {
		flags = append(flags, strings.TrimSpace(line))
	}
	return flags
}

// TestFlags compares all flags with upstream's, with their defaults and explanations.
func TestFlags(t *testing.T) {
	bin := testcluster.Binaries(t, warm, cold)
	own, upstream := help(t, bin, warm), help(t, bin, cold)
	if len(upstream) < 200 {
		t.Fatalf("the help of %s has only %d lines", cold, len(upstream))
	}
	for _, line := range upstream {
		if !slices.Contains(own, line) {
			t.Errorf("missing, or different from upstream's: %s", line)
		}
	}
	for _, line := range own {
		if !slices.Contains(upstream, line) {
			t.Errorf("not in upstream's help: %s", line)
		}
	}
}

// TestLeaderMigration checks that the one flag without a meaning is rejected.
func TestLeaderMigration(t *testing.T) {
	bin := testcluster.Binaries(t, warm)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, os.WriteFile(kubeconfig, []byte(`{"apiVersion":"v1","kind":"Config",`+
		`"clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:1"}}],`+
		`"contexts":[{"name":"c","context":{"cluster":"c"}}],"current-context":"c"}`), 0o600))
	program := exec.Command(filepath.Join(bin, warm), "--kubeconfig", kubeconfig, "--secure-port=0", "--enable-leader-migration")
	out, err := program.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "--enable-leader-migration: ") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestPages compares the pages of our process, as a standby and as the leader, with those of upstream's leader.
func TestPages(t *testing.T) {
	c := newCluster(t)
	upstream := c.start(t, cold)
	c.awaitWrites(t, upstream)
	own := c.start(t, warm)
	testcluster.Eventually(t, patience, "the standby is warm", own.isWarm)
	if text := own.page("/healthz"); text != "ok" {
		t.Errorf("/healthz of the standby: %q", text)
	}
	if want, got := configz(t, upstream), configz(t, own); !reflect.DeepEqual(got, want) {
		t.Errorf("/configz:\n%v\nupstream's:\n%v", got, want)
	}
	checks, queues := upstream.names("/healthz?verbose", healthCheck), upstream.names("/metrics", workQueue)
	if len(checks) < 30 || len(queues) < 20 {
		t.Fatalf("upstream has %d health checks and %d work queues", len(checks), len(queues))
	}
	must(t, upstream.process.Process.Kill())
	upstream.awaitExit(t)
	testcluster.Eventually(t, patience, "our process leads", own.leads)
	testcluster.Eventually(t, patience, "our leader has the health checks and work queues of upstream's", func() bool {
		missing := without(checks, own.names("/healthz?verbose", healthCheck))
		missing = append(missing, without(queues, own.names("/metrics", workQueue))...)
		if len(missing) > 0 {
			t.Log("missing: ", missing)
		}
		return len(missing) == 0
	})
}

var (
	healthCheck = regexp.MustCompile(`(?m)^\[\+\](\S+) ok$`)
	workQueue   = regexp.MustCompile(`(?m)^workqueue_depth\{name="([^"]+)"\}`)
)

// names returns what an expression finds on a page.
func (m *manager) names(page string, expression *regexp.Regexp) (found []string) {
	for _, match := range expression.FindAllStringSubmatch(m.page(page), -1) {
		found = append(found, match[1])
	}
	return found
}

// without returns the elements of a list that another lacks.
func without(list, other []string) (missing []string) {
	for _, name := range list {
		if !slices.Contains(other, name) {
			missing = append(missing, name)
		}
	}
	return missing
}

// configz returns the configuration that a process shows.
func configz(t *testing.T, m *manager) (page map[string]any) {
	t.Helper()
	must(t, json.Unmarshal([]byte(m.page("/configz")), &page))
	if len(page) == 0 {
		t.Fatalf("/configz of %s is empty", m.name)
	}
	return page
}
