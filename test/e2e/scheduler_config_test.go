package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const configHeader = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"

// unreachableKubeconfig is the kubeconfig of an API server that does not exist. The tested errors occur
// before a scheduler connects.
const unreachableKubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: nowhere, cluster: {server: "https://127.0.0.1:1"}}]
contexts: [{name: nowhere, context: {cluster: nowhere, user: nobody}}]
current-context: nowhere
users: [{name: nobody, user: {}}]
`

// badConfigs are configurations that kube-scheduler rejects.
var badConfigs = map[string]string{
	"unknown plugin": configHeader + "profiles: [{schedulerName: a, plugins: {filter: {enabled: [{name: NoSuchPlugin}]}}}]\n",
	"unknown plugin at every point": configHeader +
		"profiles: [{schedulerName: a, plugins: {multiPoint: {enabled: [{name: NoSuchPlugin}]}}}]\n",
	"plugin at an unsupported point": configHeader +
		"profiles: [{schedulerName: a, plugins: {score: {enabled: [{name: NodeName}]}}}]\n",
	"unknown field":          configHeader + "parallelisms: 3\n",
	"unknown field within":   configHeader + "profiles: [{schedulerName: a, plugin: {}}]\n",
	"duplicate field":        configHeader + "parallelism: 3\nparallelism: 4\n",
	"unknown version":        strings.Replace(configHeader, "/v1\n", "/v9\n", 1),
	"unknown kind":           strings.Replace(configHeader, "Kube", "Cube", 1),
	"no kind":                "parallelism: 3\n",
	"unknown args":           configHeader + "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategies: {}}}]}]\n",
	"args of another kind":   configHeader + "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {kind: InterPodAffinityArgs}}]}]\n",
	"args out of range":      configHeader + "profiles: [{pluginConfig: [{name: InterPodAffinity, args: {hardPodAffinityWeight: 101}}]}]\n",
	"args twice":             configHeader + "profiles: [{pluginConfig: [{name: NodeAffinity}, {name: NodeAffinity}]}]\n",
	"two profiles, one name": configHeader + "profiles: [{schedulerName: a}, {schedulerName: a}]\n",
	"profiles that sort differently": configHeader +
		"profiles: [{schedulerName: a}, {schedulerName: b, plugins: {queueSort: {disabled: [{name: '*'}]}}}]\n",
	"negative weight":               configHeader + "profiles: [{plugins: {score: {enabled: [{name: NodeAffinity, weight: -1}]}}}]\n",
	"no binder":                     configHeader + "profiles: [{plugins: {bind: {disabled: [{name: '*'}]}, multiPoint: {disabled: [{name: '*'}]}}}]\n",
	"negative parallelism":          configHeader + "parallelism: -1\n",
	"percentage over 100":           configHeader + "percentageOfNodesToScore: 101\n",
	"maximum backoff below initial": configHeader + "podInitialBackoffSeconds: 5\npodMaxBackoffSeconds: 2\n",
	"two binding extenders": configHeader +
		"extenders: [{urlPrefix: 'http://a', bindVerb: bind}, {urlPrefix: 'http://b', bindVerb: bind}]\n",
	"not YAML":                 configHeader + "profiles: [}\n",
	"binary":                   "\x00\x01\x02",
	"empty":                    "",
	"list not a map":           "- a\n- b\n",
	"number as list":           configHeader + "profiles: 7\n",
	"text as number":           configHeader + "parallelism: many\n",
	"lease that ends too soon": configHeader + "leaderElection: {leaderElect: true, leaseDuration: 1s, renewDeadline: 2s}\n",
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

// TestSchedulersRejectSameConfigs starts kube-scheduler and dist-scheduler with invalid configurations. The
// exit codes and the last errors must be equal, except for the name of the program.
func TestSchedulersRejectSameConfigs(t *testing.T) {
	w := newWorkspace(t)
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "kubeconfig"), []byte(unreachableKubeconfig), 0o600))
	connect := "clientConnection: {kubeconfig: " + filepath.Join(dir, "kubeconfig") + "}\n"
	good := filepath.Join(dir, "good.yaml")
	must(t, os.WriteFile(good, []byte(configHeader+connect), 0o600))
	for name, content := range badConfigs {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "bad.yaml")
			if strings.HasPrefix(content, configHeader) {
				content += connect
			}
			must(t, os.WriteFile(file, []byte(content), 0o600))
			w.checkSameRejection(t, "--config", file, "--secure-port", "0")
		})
	}
	values := strings.NewReplacer("{good}", good, "{dir}", dir, "{missing}", filepath.Join(dir, "missing"))
	for name, line := range badCommands {
		t.Run(name, func(t *testing.T) {
			args := make([]string, len(line))
			for i := range line {
				args[i] = values.Replace(line[i])
			}
			w.checkSameRejection(t, args...)
		})
	}
}

// checkSameRejection runs both schedulers with the same arguments and compares their exit codes and errors.
func (w *workspace) checkSameRejection(t *testing.T, args ...string) {
	t.Helper()
	want, have := w.rejection(t, "kube-scheduler", args), w.rejection(t, "dist-scheduler", args)
	if have != want {
		t.Errorf("dist-scheduler: exit code %d, %s\nkube-scheduler: exit code %d, %s", have.code, have.stderr, want.code, want.stderr)
	}
	if want.code == 0 || want.stderr == "" {
		t.Errorf("kube-scheduler accepts the configuration: exit code %d, %q", want.code, want.stderr)
	}
}

// rejection returns the exit code and the last error of a scheduler. The error may have several lines.
func (w *workspace) rejection(t *testing.T, scheduler string, args []string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r := finish(t, exec.CommandContext(ctx, filepath.Join(w.bin, scheduler), args...))
	if ctx.Err() != nil {
		t.Fatalf("%s %v is still running\n%s", scheduler, args, r.stderr)
	}
	lines := strings.Split(strings.TrimSpace(r.stderr), "\n")
	last := len(lines) - 1
	for first := last; first >= 0; first-- {
		if logPrefix.MatchString(lines[first]) {
			last = first
			break
		}
	}
	message := logPrefix.ReplaceAllString(strings.Join(lines[last:], "\n"), "")
	return result{code: r.code, stderr: strings.ReplaceAll(message, scheduler, "SCHEDULER")}
}

// logPrefix matches the severity, time and thread of a log line. Time and thread differ between runs.
var logPrefix = regexp.MustCompile(`^[EIWF]\d{4} [\d:.]+ +\d+ `)
