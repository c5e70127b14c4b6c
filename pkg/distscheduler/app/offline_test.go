package app

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/component-base/cli"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the outputs of the commands to testdata instead of comparing them")

// asCommand is an environment variable that makes the test binary dist-scheduler itself.
const asCommand = "TEST_AS_DIST_SCHEDULER"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		os.Exit(cli.Run(NewSchedulerCommand()))
	}
	os.Exit(m.Run())
}

// distScheduler runs dist-scheduler in its own process, in testdata.
func distScheduler(t *testing.T, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out, errOut bytes.Buffer
	cmd := exec.Command(binary, args...)
	cmd.Dir, cmd.Env = "testdata", append(os.Environ(), asCommand+"=1", "KUBECONFIG=none", "HOME="+t.TempDir())
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errOut
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

// TestOutputsOfOfflineCommands compares the output of explain and simulate with files. Run it with -update to write them.
func TestOutputsOfOfflineCommands(t *testing.T) {
	for name, args := range map[string]string{
		"explain-bound":         "explain --pod default/web-1 --cluster cluster.yaml",
		"explain-node-outdone":  "explain --pod web-1 --cluster cluster.yaml --node node-4",
		"explain-node-rejected": "explain --pod web-1 --cluster cluster.yaml --node node-6",
		"explain-unschedulable": "explain --pod huge --cluster cluster.yaml",
		"explain-gated":         "explain --pod gated --cluster cluster.yaml",
		"explain-new":           "explain --pod web.yaml --cluster cluster.yaml",
		"explain-config":        "explain --pod web-1 --cluster cluster.yaml --config packing.yaml",
		"explain-json":          "explain --pod web-1 --cluster cluster.yaml --node node-1 -o json",
		"explain-help":          "explain --help",
		"simulate-deployment":   "simulate --cluster cluster.yaml --pods web.yaml --seed 7",
		"simulate-mixed":        "simulate --cluster cluster.yaml --pods mixed.yaml",
		"simulate-pending":      "simulate --cluster cluster.yaml --pods pending --scheduler-config packing.yaml",
		"simulate-json":         "simulate --cluster cluster.yaml --pods mixed.yaml --order file -o json",
		"simulate-yaml":         "simulate --cluster cluster.yaml --pods web.yaml -o yaml",
		"simulate-help":         "simulate --help",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, stderr, code := distScheduler(t, "", strings.Fields(args)...)
			if code != 0 || stderr != "" {
				t.Fatalf("dist-scheduler %s exits with code %d: %s\n%s", args, code, stderr, got)
			}
			checkFormat(t, args, got)
			path := filepath.Join("testdata", name+".golden")
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("dist-scheduler %s prints\n%s\nwant %s:\n%s", args, got, path, want)
			}
		})
	}
}

// checkFormat checks that an output in JSON or YAML can be read.
func checkFormat(t *testing.T, args, output string) {
	t.Helper()
	var err error
	switch {
	case strings.HasSuffix(args, "-o json"):
		err = json.Unmarshal([]byte(output), &map[string]any{})
	case strings.HasSuffix(args, "-o yaml"):
		err = yaml.Unmarshal([]byte(output), &map[string]any{})
	}
	if err != nil {
		t.Error(err)
	}
}

// TestSimulationDependsOnSeedOnly runs a simulation several times: equal seeds have equal results, and other seeds choose
// other nodes of the same score.
func TestSimulationDependsOnSeedOnly(t *testing.T) {
	outputs := map[string]bool{}
	for _, seed := range []string{"1", "1", "2", "3", "4", "5"} {
		out, stderr, code := distScheduler(t, "", "simulate", "--cluster", "cluster.yaml", "--pods", "web.yaml", "--seed", seed)
		if code != 0 {
			t.Fatalf("exit code %d: %s", code, stderr)
		}
		outputs[regexp.MustCompile(`(?m)^Seed:.*$`).ReplaceAllString(out, "")] = true
	}
	if len(outputs) < 2 || len(outputs) > 5 {
		t.Errorf("six simulations with five seeds have %d different results, want 2 to 5", len(outputs))
	}
}

// TestStandardInput reads the cluster, or the pods, from standard input.
func TestStandardInput(t *testing.T) {
	for _, c := range []struct{ file, args string }{
		{"cluster.yaml", "simulate --cluster - --pods web.yaml --seed 7"},
		{"web.yaml", "simulate --cluster cluster.yaml --pods - --seed 7"},
	} {
		content, err := os.ReadFile(filepath.Join("testdata", c.file))
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile("testdata/simulate-deployment.golden")
		if err != nil {
			t.Fatal(err)
		}
		if got, stderr, code := distScheduler(t, string(content), strings.Fields(c.args)...); got != string(want) || code != 0 {
			t.Errorf("%s: code %d, %s, prints\n%s", c.args, code, stderr, got)
		}
	}
}

// TestMistakesInOfflineCommands checks that each error is one line, and its exit code.
func TestMistakesInOfflineCommands(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"explain --cluster cluster.yaml", 2, "dist-scheduler explain: --pod is missing; name a pod of the cluster (NAMESPACE/NAME), or a file with a pod; see `dist-scheduler explain --help`"},
		{"explain --pod x --nod y", 2, "dist-scheduler explain: unknown flag: --nod; see `dist-scheduler explain --help`"},
		{"explain default/web-1", 2, "dist-scheduler explain: unexpected argument \"default/web-1\"; see `dist-scheduler explain --help`"},
		{"explain --pod x -o xml", 2, "dist-scheduler explain: --output \"xml\": choose table, json or yaml"},
		{"explain --pod x --cluster cluster.yaml --kubeconfig y", 2, "dist-scheduler explain: --cluster and --kubeconfig name two clusters; use one of them"},
		{"explain --pod nope --cluster cluster.yaml", 1, "dist-scheduler explain: --pod nope: there is no such file, and no pod default/nope in the cluster"},
		{"explain --pod web-1 --node nope --cluster cluster.yaml", 1, "dist-scheduler explain: --node nope: the cluster has no such node"},
		{"explain --pod web-1 --cluster none.yaml", 1, "dist-scheduler explain: none.yaml: no such file or directory"},
		{"explain --pod web-1 --cluster web.yaml", 1, "dist-scheduler explain: the cluster has no nodes; export them too"},
		{"explain --pod web-1 --cluster cluster.yaml --config cluster.yaml", 1, "dist-scheduler explain: reading the configuration cluster.yaml: "},
		{"explain --pod web-1", 1, "dist-scheduler explain: finding a cluster: "},
		{"simulate --pods web.yaml", 2, "dist-scheduler simulate: --cluster is missing; name a snapshot of the cluster"},
		{"simulate --cluster cluster.yaml", 2, "dist-scheduler simulate: --pods is missing; name a file with pods"},
		{"simulate --cluster - --pods -", 2, "dist-scheduler simulate: --cluster and --pods cannot both be standard input"},
		{"simulate --cluster cluster.yaml --pods web.yaml --order random", 2, "dist-scheduler simulate: --order \"random\": choose queue or file"},
		{"simulate --cluster cluster.yaml --pods web.yaml --seed x", 2, "dist-scheduler simulate: invalid argument \"x\" for \"--seed\" flag"},
		{"simulate --cluster cluster.yaml --pods cluster.yaml", 1, "dist-scheduler simulate: pod default/web-1 exists in the cluster already; use another name"},
		{"simulate --cluster cluster.yaml --pods packing.yaml", 1, "dist-scheduler simulate: packing.yaml: it has no pods"},
	} {
		t.Run(c.args, func(t *testing.T) {
			t.Parallel()
			stdout, stderr, code := distScheduler(t, "", strings.Fields(c.args)...)
			if code != c.code || stdout != "" || !strings.HasPrefix(stderr, c.want) || strings.Count(stderr, "\n") != 1 {
				t.Errorf("dist-scheduler %s: code %d, %q, prints %q; want code %d and one line %q", c.args, code, stderr, stdout, c.code, c.want)
			}
		})
	}
}
