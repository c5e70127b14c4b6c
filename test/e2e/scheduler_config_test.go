package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

const configHead = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"

// kubeconfig of an API server that does not exist. The tested errors occur before connecting.
const nowhere = `apiVersion: v1
kind: Config
clusters: [{name: nowhere, cluster: {server: "https://127.0.0.1:1"}}]
contexts: [{name: nowhere, context: {cluster: nowhere, user: nobody}}]
current-context: nowhere
users: [{name: nobody, user: {}}]
`

// badConfigs are configurations that kube-scheduler rejects.
var badConfigs = map[string]string{
	"unknown plugin": configHead + "profiles: [{schedulerName: a, plugins: {filter: {enabled: [{name: NoSuchPlugin}]}}}]\n",
	"unknown plugin at every point": configHead +
		"profiles: [{schedulerName: a, plugins: {multiPoint: {enabled: [{name: NoSuchPlugin}]}}}]\n",
	"plugin at an unsupported point": configHead +
		"profiles: [{schedulerName: a, plugins: {score: {enabled: [{name: NodeName}]}}}]\n",
	"unknown field":          configHead + "parallelisms: 3\n",
	"unknown field within":   configHead + "profiles: [{schedulerName: a, plugin: {}}]\n",
	"duplicate field":        configHead + "parallelism: 3\nparallelism: 4\n",
	"unknown version":        strings.Replace(configHead, "/v1\n", "/v9\n", 1),
	"unknown kind":           strings.Replace(configHead, "Kube", "Cube", 1),
	"no kind":                "parallelism: 3\n",
	"unknown args":           configHead + "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategies: {}}}]}]\n",
	"args of another kind":   configHead + "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {kind: InterPodAffinityArgs}}]}]\n",
	"args out of range":      configHead + "profiles: [{pluginConfig: [{name: InterPodAffinity, args: {hardPodAffinityWeight: 101}}]}]\n",
	"args twice":             configHead + "profiles: [{pluginConfig: [{name: NodeAffinity}, {name: NodeAffinity}]}]\n",
	"two profiles, one name": configHead + "profiles: [{schedulerName: a}, {schedulerName: a}]\n",
	"profiles that sort differently": configHead +
		"profiles: [{schedulerName: a}, {schedulerName: b, plugins: {queueSort: {disabled: [{name: '*'}]}}}]\n",
	"negative weight":               configHead + "profiles: [{plugins: {score: {enabled: [{name: NodeAffinity, weight: -1}]}}}]\n",
	"no binder":                     configHead + "profiles: [{plugins: {bind: {disabled: [{name: '*'}]}, multiPoint: {disabled: [{name: '*'}]}}}]\n",
	"negative parallelism":          configHead + "parallelism: -1\n",
	"percentage over 100":           configHead + "percentageOfNodesToScore: 101\n",
	"maximum backoff below initial": configHead + "podInitialBackoffSeconds: 5\npodMaxBackoffSeconds: 2\n",
	"two binding extenders": configHead +
		"extenders: [{urlPrefix: 'http://a', bindVerb: bind}, {urlPrefix: 'http://b', bindVerb: bind}]\n",
	"not YAML":                 configHead + "profiles: [}\n",
	"binary":                   "\x00\x01\x02",
	"empty":                    "",
	"list not a map":           "- a\n- b\n",
	"number as list":           configHead + "profiles: 7\n",
	"text as number":           configHead + "parallelism: many\n",
	"lease that ends too soon": configHead + "leaderElection: {leaderElect: true, leaseDuration: 1s, renewDeadline: 2s}\n",
}

// badCommands are command lines that kube-scheduler rejects.
var badCommands = map[string][]string{
	"unknown flag":           {"--no-such-flag"},
	"flag without its value": {"--config"},
	"flag with a bad value":  {"--secure-port", "much"},
	"impossible port":        {"--secure-port", "70000", "--config", "{good}"},
	"unknown feature gate":   {"--feature-gates", "NoSuchFeature=true"},
	"feature gate, no value": {"--feature-gates", "SchedulerAsyncAPICalls"},
	"feature that is fixed":  {"--feature-gates", "AllAlpha=perhaps"},
	"argument":               {"argument"},
	"unknown log format":     {"--logging-format", "xml"},
	"missing configuration":  {"--config", "{missing}"},
	"directory for a file":   {"--config", "{dir}"},
	"missing kubeconfig":     {"--kubeconfig", "{missing}"},
	"invalid duration":       {"--config", "{good}", "--leader-elect-retry-period", "soon"},
	"missing certificate":    {"--config", "{good}", "--tls-cert-file", "{missing}", "--tls-private-key-file", "{missing}"},
	"unknown cipher":         {"--config", "{good}", "--tls-cipher-suites", "ROT13"},
}

// TestSchedulerRejectsConfigsAsUpstream starts both schedulers with invalid configurations. Exit
// code and last error must be equal, except for the program's name.
func TestSchedulerRejectsConfigsAsUpstream(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "kubeconfig"), []byte(nowhere), 0o600))
	connect := "clientConnection: {kubeconfig: " + filepath.Join(dir, "kubeconfig") + "}\n"
	good := filepath.Join(dir, "good.yaml")
	must(t, os.WriteFile(good, []byte(configHead+connect), 0o600))
	for name, content := range badConfigs {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "bad.yaml")
			if strings.HasPrefix(content, configHead) {
				content += connect
			}
			must(t, os.WriteFile(file, []byte(content), 0o600))
			w.rejectAlike(t, "--config", file, "--secure-port", "0")
		})
	}
	values := strings.NewReplacer("{good}", good, "{dir}", dir, "{missing}", filepath.Join(dir, "missing"))
	for name, line := range badCommands {
		t.Run(name, func(t *testing.T) {
			args := make([]string, len(line))
			for i := range line {
				args[i] = values.Replace(line[i])
			}
			w.rejectAlike(t, args...)
		})
	}
}

// rejectAlike runs both schedulers and compares their exit codes and errors.
func (w *world) rejectAlike(t *testing.T, args ...string) {
	t.Helper()
	want, have := w.refusal(t, "kube-scheduler", args), w.refusal(t, "dist-scheduler", args)
	if have != want {
		t.Errorf("dist-scheduler: code %d, %s\nkube-scheduler: code %d, %s", have.code, have.stderr, want.code, want.stderr)
	}
	if want.code == 0 || want.stderr == "" {
		t.Errorf("kube-scheduler accepts it: code %d, %q", want.code, want.stderr)
	}
}

// refusal returns the exit code and the last error of a scheduler. The error may have several lines.
func (w *world) refusal(t *testing.T, scheduler string, args []string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r := finish(t, exec.CommandContext(ctx, filepath.Join(w.bin, scheduler), args...))
	if ctx.Err() != nil {
		t.Fatalf("%s %v is still running\n%s", scheduler, args, r.stderr)
	}
	lines := strings.Split(strings.TrimSpace(r.stderr), "\n")
	last := len(lines) - 1
	for first := last; first >= 0; first-- {
		if logHead.MatchString(lines[first]) {
			last = first
			break
		}
	}
	message := logHead.ReplaceAllString(strings.Join(lines[last:], "\n"), "")
	return result{code: r.code, stderr: strings.ReplaceAll(message, scheduler, "SCHEDULER")}
}

// logHead matches severity, time and thread of a log line, which differ between runs.
var logHead = regexp.MustCompile(`^[EIWF]\d{4} [\d:.]+ +\d+ `)
